"""Validates Kubernetes objects against the schemas of several API versions: schemas.py FOLDER VERSION...

FOLDER contains files CASE.yaml and CASE.out.yaml, the input and the output of an injection. Every output object with a sidecar is validated
strictly: a field that the version does not define is a fault. Of a custom resource, such as a Rollout, only the pod template is validated.
An object whose input is invalid already is no evidence about the injection and is counted separately.

Prints one line of JSON: {"valid": {VERSION: count}, "invalid_input": {VERSION: count}, "faults": [text]}.
"""

import json
import pathlib
import sys

import kubernetes_validate
import yaml

STATUS = "groupage.dev/status"


def objects(path):
    """Returns all objects of a file, including the items of lists, by kind, namespace and name."""
    found = {}
    for document in yaml.load_all(path.read_text(encoding="utf-8"), Loader=Loader):
        if not isinstance(document, dict):
            continue
        for each in document.get("items") or [document] if document.get("kind", "").endswith("List") else [document]:
            metadata = each.get("metadata") or {}
            name = metadata.get("name") or metadata.get("generateName")
            found[(each.get("kind"), metadata.get("namespace"), name)] = each
    return found


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """A YAML loader that keeps timestamps as strings, as kubectl does."""


Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in Loader.yaml_implicit_resolvers.items()
}


def templates(node):
    """Yields every pod or pod template in an object."""
    if isinstance(node, dict):
        if isinstance(node.get("spec"), dict) and isinstance(node["spec"].get("containers"), list):
            yield node
        for value in node.values():
            yield from templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from templates(value)


def pods(node):
    """Returns the pod templates of an object as pods, which can be validated alone."""
    return [{**template, "apiVersion": "v1", "kind": "Pod"} for template in templates(node)]


def injected(node):
    """Returns True if a pod template in an object has a sidecar."""
    return any(STATUS in ((template.get("metadata") or {}).get("annotations") or {}) for template in templates(node))


def faults(node, version):
    """Returns the faults of an object, or of its pod templates if the version does not define its kind."""
    try:
        kubernetes_validate.validate(node, version, strict=True)
        return []
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(str(step) for step in error.path)}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError:
        return pod_faults(node, version)


def pod_faults(node, version):
    """Returns the faults of all pod templates in an object."""
    return [fault for pod in pods(node) for fault in faults(pod, version)]


def main(folder, versions):
    """Validates all cases of a folder and prints the counts and the faults."""
    report = {"valid": dict.fromkeys(versions, 0), "invalid_input": dict.fromkeys(versions, 0), "faults": []}
    for path in sorted(pathlib.Path(folder).glob("*.out.yaml")):
        case = path.name.removesuffix(".out.yaml")
        before = None
        for key, node in objects(path).items():
            if not injected(node):
                continue
            for version in versions:
                found = faults(node, version)
                if not found:
                    report["valid"][version] += 1
                    continue
                before = before if before is not None else objects(path.with_name(f"{case}.yaml"))
                if key in before and faults(before[key], version):
                    # A fault outside of the pod template may hide a fault in it, so the template is
                    # validated alone.
                    found = pod_faults(node, version)
                    if not found or pod_faults(before[key], version):
                        report["invalid_input" if found else "valid"][version] += 1
                        continue
                report["faults"] += [f"{case}, {key[0]} {key[2]}, {version}: {text}"[:400] for text in found]
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
