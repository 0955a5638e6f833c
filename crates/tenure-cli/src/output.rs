//! Writes data to stdout, and notes and failures to stderr.
//!
//! Values from a store are not trusted: on a terminal one could move the cursor or set the window title, and in a
//! listing a line break would forge a line. So listings are always escaped, and single values on a terminal.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;

/// When to use colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR or TERM=dumb is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The output options of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) is_json: bool,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    color: Color,
    /// Whether only failures are printed on stderr.
    pub(crate) is_quiet: bool,
}

/// The style of a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TextStyle {
    Good,
    Doubtful,
    Bad,
}

impl Output {
    pub(crate) fn new(is_json: bool, color: Color) -> Output {
        Output {
            is_json,
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal: io::stderr().is_terminal(),
            color,
            is_quiet: false,
        }
    }

    /// Sets `--quiet`: no notes about the start and about locks that were not acquired.
    #[must_use]
    pub(crate) fn quiet(self, is_quiet: bool) -> Output {
        Output { is_quiet, ..self }
    }

    /// Writes a JSON object as one line and flushes it, so that a reader of a pipe gets it immediately.
    pub(crate) fn object(&self, object: &impl Serialize) -> Result<(), Failure> {
        self.write(format!("{}\n", to_json(object)).as_bytes())
    }

    /// Writes a record: escaped cells, separated by tabs, so that each line is one record.
    pub(crate) fn record<C: AsRef<[u8]>>(&self, cells: impl IntoIterator<Item = C>) -> Result<(), Failure> {
        let cells: Vec<String> = cells.into_iter().map(|cell| escape(cell.as_ref())).collect();
        self.write(format!("{}\n", cells.join("\t")).as_bytes())
    }

    /// Writes records with a heading, aligned, on a terminal; elsewhere with tabs and without the heading.
    pub(crate) fn table(&self, heading: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
        if !self.stdout_is_terminal {
            return rows.iter().try_for_each(|row| self.record(row));
        }
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| escape(cell.as_bytes())).collect()).collect();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([heading[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..heading.len()).map(width).collect();
        let heading = heading.iter().map(|&name| name.to_uppercase()).collect();
        for row in [heading].iter().chain(&rows) {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
            self.write(format!("{}\n", cells.join("  ").trim_end()).as_bytes())?;
        }
        Ok(())
    }

    /// Writes a value and a line break: unchanged into a pipe or a file, escaped on a terminal.
    pub(crate) fn value(&self, value: &[u8]) -> Result<(), Failure> {
        if self.stdout_is_terminal {
            return self.write(format!("{}\n", escape_controls(value)).as_bytes());
        }
        self.write(&[value, b"\n"].concat())
    }

    /// Writes trusted text to stdout.
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        self.write(text.as_bytes())
    }

    /// A label for stdout, coloured if colours are on.
    pub(crate) fn toned(&self, style: TextStyle, text: &str) -> String {
        paint(style, text, self.colors(self.stdout_is_terminal))
    }

    /// A label for stderr, coloured if colours are on.
    pub(crate) fn toned_stderr(&self, style: TextStyle, text: &str) -> String {
        paint(style, text, self.colors_stderr())
    }

    /// Writes a note to stderr, an object with `--json`. A closed stderr is no failure.
    pub(crate) fn note(&self, text: &str) {
        #[derive(Serialize)]
        struct Note<'a> {
            note: &'a str,
        }
        if self.is_json {
            return self.note_object(&Note { note: text });
        }
        let _ = writeln!(io::stderr(), "tenure: {}", escape_controls(text.as_bytes()));
    }

    /// Writes a warning to stderr, unless the output is quiet.
    pub(crate) fn warn(&self, text: &str) {
        #[derive(Serialize)]
        struct Warning<'a> {
            warning: &'a str,
        }
        if self.is_quiet {
            return;
        }
        if self.is_json {
            return self.note_object(&Warning { warning: text });
        }
        let label = self.toned_stderr(TextStyle::Doubtful, "warning:");
        let _ = writeln!(io::stderr(), "tenure: {label} {}", escape_controls(text.as_bytes()));
    }

    /// Whether [`Output::status`] redraws one line.
    pub(crate) fn has_status(&self) -> bool {
        self.stderr_is_terminal && !self.is_json
    }

    /// Shows a status: redraws the last one on a terminal, and writes a note elsewhere.
    pub(crate) fn status(&self, text: &str) {
        if self.has_status() {
            let text = escape_controls(text.as_bytes()).replace('\n', " ");
            let _ = write!(io::stderr(), "\r\x1b[Ktenure: {text}");
        } else {
            self.note(text);
        }
    }

    /// Clears the status line.
    pub(crate) fn clear_status(&self) {
        if self.has_status() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Writes a JSON object to stderr, while stdout belongs to a command.
    pub(crate) fn note_object(&self, object: &impl Serialize) {
        let _ = writeln!(io::stderr(), "{}", to_json(object));
    }

    /// Writes the failure to stderr, as the last line.
    pub(crate) fn failure(&self, failure: &Failure) {
        #[derive(Serialize)]
        struct Wrapped<'a> {
            error: &'a Failure,
        }
        let mut text = if self.is_json {
            to_json(&Wrapped { error: failure })
        } else {
            let label = paint(TextStyle::Bad, "error:", self.colors_stderr());
            let hint = failure.hint.as_ref();
            let hint = hint.map(|hint| format!("\n  hint: {}", escape_controls(hint.as_bytes())));
            format!(
                "tenure: {label} {}{}",
                escape_controls(failure.message.as_bytes()),
                hint.unwrap_or_default()
            )
        };
        text.push('\n');
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// Whether stderr is coloured.
    fn colors_stderr(&self) -> bool {
        self.colors(self.stderr_is_terminal)
    }

    fn colors(&self, is_terminal: bool) -> bool {
        match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => is_terminal && wants_color(|name| std::env::var(name).ok()),
        }
    }
}

/// Implements <https://no-color.org>: a non-empty NO_COLOR turns colours off.
fn wants_color(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    !is_refused && variable("TERM").is_none_or(|term| term != "dumb")
}

fn paint(style: TextStyle, text: &str, colors: bool) -> String {
    if !colors {
        return text.to_owned();
    }
    let color = match style {
        TextStyle::Good => 32,
        TextStyle::Doubtful => 33,
        TextStyle::Bad => 31,
    };
    format!("\x1b[1;{color}m{text}\x1b[0m")
}

/// Escapes control characters, bytes that are not UTF-8, and `\` itself, so that the text can be parsed back.
pub(crate) fn escape(bytes: &[u8]) -> String {
    escape_with(bytes, |c| is_treacherous(c) || c == '\\')
}

/// As [`escape`], but keeps line breaks, tabs and `\`: for text that is only displayed.
pub(crate) fn escape_controls(bytes: &[u8]) -> String {
    escape_with(bytes, |c| is_treacherous(c) && !matches!(c, '\n' | '\t'))
}

/// Whether a character is a control character (also C1: U+009B begins an escape sequence) or changes the direction of text.
pub(crate) fn is_treacherous(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Serializes to JSON without characters that affect a terminal. serde does not escape C1 controls and direction marks.
pub(crate) fn to_json(object: &impl Serialize) -> String {
    let json = serde_json::to_string(object).expect("reports always serialize");
    if !json.contains(is_treacherous) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if is_treacherous(c) {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

fn escape_with(bytes: &[u8], must_escape: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if must_escape(c) {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_record_is_one_line() {
        for (bytes, text) in [
            (&b"plain /key"[..], "plain /key"),
            (b"two\nlines\tand a tab", r"two\nlines\tand a tab"),
            (b"\x1b]0;title\x07", r"\u{1b}]0;title\u{7}"),
            (b"back\\slash", r"back\\slash"),
            (b"\xff\xfe", r"\xff\xfe"),
            ("é ☃".as_bytes(), "é ☃"),
            ("\u{9b}31m".as_bytes(), r"\u{9b}31m"),
            ("a\u{202e}b".as_bytes(), r"a\u{202e}b"),
        ] {
            assert_eq!(escape(bytes), text);
        }
    }

    #[test]
    fn message_keeps_lines_and_loses_escape_sequences() {
        assert_eq!(escape_controls(b"a\n\tb\\ \x1b[2J"), "a\n\tb\\ \\u{1b}[2J");
    }

    #[test]
    fn json_escapes_control_characters() {
        let value = "\u{9b}31m \u{202e}x \u{7f} \n é";
        let json = to_json(&value);
        assert_eq!(json, "\"\\u009b31m \\u202ex \\u007f \\n é\"");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), value);
    }

    #[test]
    fn no_color_and_dumb_terminal_disable_colours() {
        let with = |name: &'static str, value: &'static str| {
            wants_color(|variable| (variable == name).then(|| value.to_owned()))
        };
        assert!(with("TERM", "xterm"));
        assert!(with("NO_COLOR", ""));
        assert!(!with("NO_COLOR", "1"));
        assert!(!with("TERM", "dumb"));
    }
}
