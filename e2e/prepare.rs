//! Builds, packs and installs the prerequisites of a run. They are collected before anything is
//! started, since the namespaces have no network access for downloads.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::TestError;
use super::cases::{self, Requirement};
use super::image::{self, ImageVariant};
use super::options::Options;
use super::prerequisites::{Images, Prerequisites};
use super::programs::{cache_dir, cargo_target, find_program, repository_root, run_quietly};

/// Required programs, and the Debian packages that contain them.
const PROGRAMS: [(&str, &str); 5] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
];
/// Version of Helm that the chart is made for.
const HELM: &str = "v4.3.0";

/// Builds, packs and installs everything that is not present yet.
pub(crate) fn collect(options: &Options) -> Result<Prerequisites, TestError> {
    let wanted: Vec<_> = cases::all().filter(|case| case.is_wanted(&options.cases)).collect();
    if wanted.is_empty() && !options.shell {
        return Err("no case has that name; --list prints all".into());
    }
    let needed = |need| wanted.iter().any(|case| case.needs.contains(&need));
    let unused = || Err("not selected".to_owned());
    if options.kubeconfig.is_none() {
        install_packages()?;
    }
    let kubectl = find_program("kubectl").filter(|_| options.kubeconfig.is_some());
    let kube = kubectl.map_or_else(build_kubernetes, Ok)?;
    let helm = if needed(Requirement::Helm) || options.shell {
        build_helm().map_err(|fault| fault.to_string())
    } else {
        unused()
    };
    let python =
        if needed(Requirement::Python) { create_python_env().map_err(|fault| fault.to_string()) } else { unused() };
    let venvs = wanted.iter().flat_map(|case| case.needs).filter_map(|need| match need {
        Requirement::Venv(name) => Some(((*name).to_owned(), create_venv(name, options))),
        _ => None,
    });
    let venvs = venvs.collect();
    let mut images = Images {
        groupage: image::pack_product(ImageVariant::Static, &options.profile)?,
        stand_in: image::pack_test_kit()?,
        pause: image::pack_pause()?,
        cuda: if needed(Requirement::CudaImage) && options.all {
            Some(image::pack_product(ImageVariant::Cuda, &options.profile)?)
        } else {
            None
        },
        binary: image::binary_path()?,
    };
    images.offer(options)?;
    let output_dir = cargo_target().join("e2e");
    std::fs::create_dir_all(&output_dir)?;
    Ok(Prerequisites {
        cases: wanted.iter().map(|case| case.name.to_owned()).collect(),
        all: options.all,
        profile: options.profile.clone(),
        shell: options.shell,
        kube,
        helm,
        python,
        venvs,
        images,
        output_dir,
        run: std::process::id(),
        kubeconfig: options.kubeconfig.clone(),
    })
}

fn install_packages() -> Result<(), TestError> {
    let absent = |program: &str| {
        if program.starts_with('/') { !Path::new(program).exists() } else { find_program(program).is_none() }
    };
    let packages: Vec<_> =
        PROGRAMS.iter().filter(|(program, _)| absent(program)).map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    println!("installing {}", packages.join(" "));
    let apt = |args: &[&str]| {
        run_quietly(Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive"))
            .map_err(|fault| format!("{} are needed: {fault}", packages.join(" ")))
    };
    apt(&["update", "-qq"])?;
    let install = ["install", "-y", "-qq", "--no-install-recommends"];
    apt(&install.into_iter().chain(packages.iter().copied()).collect::<Vec<_>>())?;
    Ok(())
}

/// Builds the Kubernetes binary, unless it is cached under the hash of its sources.
fn build_kubernetes() -> Result<PathBuf, TestError> {
    let module = repository_root().join("e2e/kube");
    let mut made_of = blake3::Hasher::new();
    for file in ["go.mod", "go.sum", "main.go"] {
        made_of.update(&std::fs::read(module.join(file))?);
    }
    let name = made_of.finalize().to_hex();
    let folder = cache_dir()?.join(format!("kube-{}", name.get(..16).unwrap_or(name.as_str())));
    // The binary inspects its own name to select the program to run.
    let binary = folder.join("kube");
    if !binary.exists() {
        println!("building Kubernetes, about 5 minutes; it is kept as {}", binary.display());
        std::fs::create_dir_all(&folder)?;
        // Built under another name first, so that an interrupted build is not mistaken for a
        // complete one.
        let partial = binary.with_extension(std::process::id().to_string());
        run_quietly(Command::new(module.join("build.sh")).arg(&partial))?;
        std::fs::rename(partial, &binary)?;
    }
    Ok(binary)
}

fn build_helm() -> Result<PathBuf, TestError> {
    let folder = cache_dir()?.join(format!("helm-{HELM}"));
    let binary = folder.join("helm");
    if !binary.exists() {
        println!("building helm {HELM}, about 2 minutes; it is kept as {}", binary.display());
        let module = format!("helm.sh/helm/v4/cmd/helm@{HELM}");
        run_quietly(Command::new("go").args(["install", &module]).env("GOBIN", &folder).env("CGO_ENABLED", "0"))?;
    }
    Ok(binary)
}

/// Returns the interpreter of the virtual environment of `tests/servers`, which is created if it
/// does not exist.
fn create_python_env() -> Result<PathBuf, TestError> {
    let given = std::env::var_os("GROUPAGE_SERVERS_VENV").filter(|venv| !venv.is_empty());
    let venv = given.map_or_else(|| cargo_target().join("servers-venv"), |venv| repository_root().join(venv));
    run_quietly(Command::new(repository_root().join("tests/servers/setup.sh")).env("GROUPAGE_SERVERS_VENV", &venv))?;
    Ok(venv.join("bin/python"))
}

/// Returns the interpreter of a virtual environment for packages that conflict with all others. It
/// is created from `PyPI` if it does not exist.
fn create_venv(name: &str, options: &Options) -> Result<PathBuf, String> {
    if !options.all {
        return Err(format!("runs with --all: {name} and its packages are an environment of hundreds of MiB"));
    }
    let made = run_quietly(Command::new(repository_root().join("e2e/python/setup.sh")).arg(name));
    made.map(|folder| Path::new(folder.trim()).join("bin/python")).map_err(|fault| fault.to_string())
}
