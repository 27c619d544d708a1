//! Names of a kernel: registers, variables in shared and local memory, and parameters.

use std::collections::HashMap;

use super::ParseResult;
use crate::instruction::{BitWidth, Register};

/// Registers of a kernel: ten times those of the largest kernel, and 16 MiB a warp.
const REGISTERS_MAX: usize = 1 << 16;

/// Registers `name0` to `name<count - 1>`, declared together.
#[derive(Debug)]
struct RegisterBank {
    /// Index of the first of them.
    first: usize,
    count: usize,
}

/// Names of registers that are declared within one pair of braces.
#[derive(Debug, Default)]
struct RegisterNames {
    /// Banks by the prefix of their names.
    banks: HashMap<String, RegisterBank>,
    /// Registers that are declared one by one.
    single: HashMap<String, Register>,
}

/// Variables of a state space, and its size so far, in bytes.
#[derive(Debug, Default)]
struct VariableSpace {
    /// Offsets of the variables.
    offsets: HashMap<String, u64>,
    size: u64,
}

/// All names that an instruction can refer to.
#[derive(Debug, Default)]
pub(super) struct NameScope {
    /// Names of the open braces, the innermost last: they hide those of outer ones. Inline assembly
    /// has braces of its own.
    registers: Vec<RegisterNames>,
    /// Names of all registers by their index, for faults.
    register_names: Vec<String>,
    shared: VariableSpace,
    local: VariableSpace,
    /// Arrays without a length: the dynamic shared memory.
    dynamic_shared: Vec<String>,
    /// Offsets of the parameters in the arguments of a launch.
    parameters: HashMap<String, usize>,
}

// === impl NameScope ===

impl NameScope {
    /// Begins a scope, at an opening brace.
    pub(super) fn open(&mut self) {
        self.registers.push(RegisterNames::default());
    }

    /// Ends the innermost scope, at a closing brace.
    pub(super) fn close(&mut self) {
        self.registers.pop();
    }

    /// Returns the names of all registers, of inner scopes too, by their index.
    pub(super) fn into_register_names(self) -> Vec<String> {
        self.register_names
    }

    /// Returns the size of the static shared memory, which the dynamic one follows.
    pub(super) const fn shared_bytes(&self) -> u64 {
        self.shared.size.next_multiple_of(16)
    }

    pub(super) const fn local_bytes(&self) -> u64 {
        self.local.size.next_multiple_of(16)
    }

    pub(super) fn declare_parameter(&mut self, name: &str, offset: usize) {
        self.parameters.insert(name.to_owned(), offset);
    }

    pub(super) fn parameter(&self, name: &str) -> ParseResult<usize> {
        self.parameters.get(name).copied().ok_or_else(|| format!("{name} is not a parameter of the kernel"))
    }

    /// Declares the registers of `.reg .type names`.
    pub(super) fn declare_registers(&mut self, names: &str) -> ParseResult<()> {
        let scope = self.registers.last_mut().ok_or("registers outside of a kernel")?;
        for name in names.split(',').map(str::trim) {
            let first = self.register_names.len();
            if let Some((prefix, count)) = name.strip_suffix('>').and_then(|name| name.split_once('<')) {
                let count: usize = count.parse().map_err(|_| format!("{name} has no number of registers"))?;
                if count > REGISTERS_MAX - first.min(REGISTERS_MAX) {
                    return Err(format!("{name}: more than {REGISTERS_MAX} registers"));
                }
                scope.banks.insert(prefix.to_owned(), RegisterBank { first, count });
                self.register_names.extend((0..count).map(|number| format!("{prefix}{number}")));
            } else {
                scope.single.insert(name.to_owned(), Register(first));
                self.register_names.push(name.to_owned());
            }
        }
        Ok(())
    }

    /// Returns the register of a name.
    pub(super) fn register(&self, name: &str) -> ParseResult<Register> {
        let prefix = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let number = name.strip_prefix(prefix).and_then(|digits| digits.parse::<usize>().ok());
        for scope in self.registers.iter().rev() {
            if let Some(register) = scope.single.get(name) {
                return Ok(*register);
            }
            let bank = scope.banks.get(prefix).zip(number);
            if let Some((bank, number)) = bank.filter(|(bank, number)| *number < bank.count) {
                return Ok(Register(bank.first + number));
            }
        }
        Err(format!("{name} is not a register"))
    }

    /// Declares `.shared .align 4 .b8 name[16]` or `.local …`; `declaration` is without the first
    /// word.
    pub(super) fn declare_variable(&mut self, space: &str, declaration: &str) -> ParseResult<()> {
        let words: Vec<&str> = declaration.split_whitespace().collect();
        let alignment = match words.as_slice() {
            [".align", alignment, ..] => alignment.parse().map_err(|_| "an alignment that is no number")?,
            _ => 1,
        };
        let [.., kind, name] = words.as_slice() else { return Err("a variable without a type".to_owned()) };
        let width = super::mnemonic::scalar_type(kind.trim_start_matches('.'))?.width();
        let (name, length) = name.strip_suffix(']').and_then(|name| name.split_once('[')).unwrap_or((name, "1"));
        if length.is_empty() {
            self.dynamic_shared.push(name.to_owned());
            return Ok(());
        }
        let length: u64 = length.parse().map_err(|_| format!("{name} has no length"))?;
        let variables = if space == ".shared" { &mut self.shared } else { &mut self.local };
        variables.declare(name, length, width, alignment);
        Ok(())
    }

    /// Returns the address of a variable, if the name is one.
    pub(super) fn variable(&self, name: &str) -> Option<u64> {
        if self.dynamic_shared.iter().any(|dynamic| dynamic == name) {
            return Some(self.shared_bytes());
        }
        self.shared.offsets.get(name).or_else(|| self.local.offsets.get(name)).copied()
    }
}

// === impl VariableSpace ===

impl VariableSpace {
    fn declare(&mut self, name: &str, length: u64, width: BitWidth, alignment: u64) {
        let offset = self.size.next_multiple_of(alignment.max(1));
        self.offsets.insert(name.to_owned(), offset);
        self.size = offset + length * width.bytes() as u64;
    }
}
