//! Command-line parsing: the words of a container's command, each with its position.
//!
//! A word is an item of `command` or `args`, or a part of a shell script (`sh -c TEXT`). Of a
//! script, only simple commands without substitutions are parsed; anything that needs a shell to
//! evaluate is rejected.

use std::ops::Range;

use serde_json::Value;

use crate::access::{list, text};

/// Names of known shells.
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "zsh"];
/// Programs that run the command after them unchanged.
const WRAPPERS: [&str; 10] = [
    "exec",
    "tini",
    "dumb-init",
    "catatonit",
    "env",
    "nohup",
    "opentelemetry-instrument",
    "ddtrace-run",
    "uv",
    "poetry",
];
/// Shell keywords that begin another branch.
const BRANCHES: [&str; 4] = ["else", "elif", "case", "esac"];
/// Shell keywords that precede a command which may not run.
const KEYWORDS: [&str; 9] = ["if", "then", "while", "until", "do", "{", "}", "!", "time"];
/// Words between a wrapper and the command.
const WRAPPER_WORDS: [&str; 4] = ["--", "-g", "-s", "run"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandWord {
    pub(super) text: String,
    pub(super) place: WordPlace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WordPlace {
    /// Either `command` or `args`.
    pub(super) list: &'static str,
    pub(super) index: usize,
    /// Byte range within the item, if the item is a shell script.
    pub(super) span: Option<Range<usize>>,
}

/// Returns the commands that a container declares: one, or those of its shell script.
pub(super) fn commands(container: &Value) -> Vec<Vec<CommandWord>> {
    let words: Vec<CommandWord> = ["command", "args"]
        .into_iter()
        .flat_map(|key| {
            list(container, &[key]).iter().enumerate().filter_map(move |(index, item)| {
                let place = WordPlace { list: key, index, span: None };
                Some(CommandWord { text: item.as_str()?.to_owned(), place })
            })
        })
        .collect();
    let Some(script) = script(&words) else { return vec![words] };
    let known = |name: &str| env_entry(container, name).is_some();
    let commands = split_script(&script.text, known).unwrap_or_default();
    let first = |words: &Vec<Range<usize>>| words.first().and_then(|span| script.text.get(span.clone()));
    // A script with several branches may start the server in only one of them.
    if commands.iter().filter_map(first).any(|word| BRANCHES.contains(&word)) {
        return Vec::new();
    }
    commands
        .into_iter()
        .map(|parts| {
            let word = |span: Range<usize>| CommandWord {
                text: strip_quotes(script.text.get(span.clone()).unwrap_or_default()),
                place: WordPlace { span: Some(span), ..script.place.clone() },
            };
            parts.into_iter().map(word).collect()
        })
        .collect()
}

/// Returns the command after shell keywords that may keep it from running or run it beside others;
/// `None` if it has no such keywords.
pub(super) fn conditional_command(words: &[CommandWord]) -> Option<&[CommandWord]> {
    let is_keyword = |word: &&CommandWord| KEYWORDS.contains(&word.text.as_str()) || word.text.ends_with("()");
    let count = words.iter().take_while(is_keyword).count();
    (count > 0).then(|| words.get(count..).unwrap_or_default())
}

/// Strips wrappers and variable assignments from the front of a command.
pub(super) fn strip_wrappers(words: &[CommandWord]) -> &[CommandWord] {
    let mut rest = words;
    let mut wrapped = false;
    while let Some((first, after)) = rest.split_first() {
        let word = first.text.as_str();
        let starts = WRAPPERS.contains(&base_name(word));
        let between = wrapped && WRAPPER_WORDS.contains(&word);
        if !starts && !between && !is_assignment(word) {
            break;
        }
        wrapped |= starts;
        rest = after;
    }
    rest
}

/// Returns the `env` entry of a variable; the last one takes effect.
pub(super) fn env_entry<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    list(container, &["env"]).iter().rfind(|entry| text(entry, &["name"]) == Some(name))
}

/// Returns the last component of a path.
pub(super) fn base_name(word: &str) -> &str {
    word.rsplit_once('/').map_or(word, |(_, name)| name)
}

/// Returns `true` if a program is a known shell, by its name or path.
pub(crate) fn is_shell(program: &str) -> bool {
    SHELLS.contains(&base_name(program))
}

/// Returns the script that a shell runs.
fn script(words: &[CommandWord]) -> Option<&CommandWord> {
    let mut rest = strip_wrappers(words).iter();
    rest.next().filter(|first| is_shell(&first.text))?;
    // Shell flags; the last one takes the script: `-c`, `-lc`, `-e -x -c`.
    let takes_text = |word: &CommandWord| word.text.starts_with('-') && word.text.ends_with('c');
    rest.find(|word| takes_text(word))?;
    let mut rest = rest.skip_while(|word| word.text == "--");
    let script = rest.next()?;
    // Words after the script are its positional parameters, if it refers to them.
    let names_arguments = script.text.match_indices('$').any(|(at, _)| {
        let name = script.text.get(at + 1..).unwrap_or_default().trim_start_matches('{');
        name.starts_with(|first: char| matches!(first, '@' | '*') || first.is_ascii_digit())
    });
    let is_whole = rest.next().is_none() || !names_arguments;
    is_whole.then_some(script)
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Returns `true` for an uppercase name, which is a variable and not a command.
fn is_capital(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Splits a shell script into simple commands, each a list of the byte ranges of its words; `None`
/// if the script needs a shell to evaluate. `known` returns `true` for variables that Kubernetes
/// expands (`$(NAME)`). An unknown variable in uppercase is accepted, because the pod may get it
/// later.
fn split_script(script: &str, known: impl Fn(&str) -> bool) -> Option<Vec<Vec<Range<usize>>>> {
    let mut commands = vec![Vec::new()];
    let mut begun: Option<usize> = None;
    let mut quote: Option<char> = None;
    let mut chars = script.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        if char == '`' || script.get(at..).is_some_and(|rest| rest.starts_with("<<")) {
            return None;
        }
        if char == '$' && chars.peek().is_some_and(|(_, next)| *next == '(') {
            let rest = script.get(at + 2..).unwrap_or_default();
            let name = rest.split_once(')').map(|(name, _)| name).filter(|name| known(name) || is_capital(name))?;
            begun = begun.or(Some(at));
            // Skips the parenthesis, the name and the closing parenthesis.
            let _ = chars.by_ref().nth(name.len() + 1);
            continue;
        }
        if char == '#' && quote.is_none() && begun.is_none() {
            while chars.next_if(|(_, next)| *next != '\n').is_some() {}
            continue;
        }
        let ends = if char == '\\' && quote.is_none() {
            // Outside quotes, only a line continuation is parsed.
            chars.next().filter(|(_, next)| *next == '\n')?;
            true
        } else {
            ends_word(char, &mut quote)?
        };
        if !ends {
            begun = begun.or(Some(at));
            continue;
        }
        if let (Some(from), Some(last)) = (begun.take(), commands.last_mut()) {
            last.push(from..at);
        }
        if quote.is_none() && (is_operator(char) || char == '\n') {
            commands.push(Vec::new());
        }
    }
    if let (Some(from), Some(last)) = (begun, commands.last_mut()) {
        last.push(from..script.len());
    }
    commands.retain(|words| !words.is_empty());
    quote.is_none().then_some(commands)
}

/// Returns `true` if a character ends a word, and opens or closes a quote; `None` for an escape
/// inside quotes.
fn ends_word(char: char, quote: &mut Option<char>) -> Option<bool> {
    match (*quote, char) {
        (Some(open), _) if char == open => *quote = None,
        (Some(_), '\\') => return None,
        (Some(_), _) => {}
        (None, '\'' | '"') => *quote = Some(char),
        (None, _) => return Some(is_operator(char) || char.is_whitespace()),
    }
    Some(false)
}

fn is_operator(char: char) -> bool {
    matches!(char, ';' | '&' | '|' | '(' | ')' | '<' | '>')
}

fn strip_quotes(word: &str) -> String {
    word.chars().filter(|char| !matches!(char, '\'' | '"')).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(container: &Value) -> Vec<Vec<String>> {
        let commands = commands(container);
        commands.iter().map(|words| strip_wrappers(words).iter().map(|word| word.text.clone()).collect()).collect()
    }

    #[test]
    fn wrappers_and_assignments_are_left_out() {
        let container = json!({"command": ["/usr/bin/tini", "-g", "--", "env", "A=1", "uvicorn"], "args": ["app:app"]});
        assert_eq!(texts(&container), [["uvicorn", "app:app"]]);
        assert_eq!(texts(&json!({"command": ["uv", "run", "uvicorn", "a:b"]})), [["uvicorn", "a:b"]]);
    }

    #[test]
    fn a_text_is_split_into_simple_commands() {
        let script = "set -e; # before\npip install x && exec uvicorn 'app:app' \\\n  --port $(PORT) > /dev/null";
        let container = json!({"command": ["/bin/sh", "-ec"], "args": [script], "env": [{"name": "PORT"}]});
        let expected: [&[&str]; 4] =
            [&["set", "-e"], &["pip", "install", "x"], &["uvicorn", "app:app", "--port", "$(PORT)"], &["/dev/null"]];
        assert_eq!(texts(&container), expected);
    }

    #[test]
    fn a_variable_that_is_given_later_is_a_part_of_its_word() {
        let container = json!({"command": ["bash", "-c", "--", "vllm serve m --nodes $(LWS_GROUP_SIZE)"]});
        assert_eq!(texts(&container), [["vllm", "serve", "m", "--nodes", "$(LWS_GROUP_SIZE)"]]);
    }

    #[test]
    fn arguments_of_a_text_that_names_them_are_not_left_out() {
        let with = |text: &str| json!({"command": ["bash", "-c", text], "args": ["a", "--port=1"]});
        assert_eq!(texts(&with("vllm serve m")), [["vllm", "serve", "m"]]);
        assert!(texts(&with("vllm serve $@")).iter().all(|words| !words.contains(&"serve".to_owned())));
    }

    #[test]
    fn scripts_that_only_a_shell_can_parse_yield_no_commands() {
        for script in ["uvicorn `a`", "uvicorn $(date)", "cat <<X\nX", "uvicorn 'a", "uvicorn \"a\\\"b\""] {
            assert_eq!(commands(&json!({"command": ["sh", "-c", script]})), [] as [Vec<CommandWord>; 0], "{script}");
        }
    }
}
