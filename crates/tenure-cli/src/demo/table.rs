//! Who runs how many tasks, drawn anew whenever that changes; only a terminal shows it.

use std::io::Write;
use std::sync::Mutex;

use crate::output::Output;

/// How wide the bar of a worker is that has everything.
const WIDTH: usize = 60;

/// The picture.
pub(super) struct LiveTable<'a> {
    output: &'a Output,
    tasks: usize,
    shown: Mutex<Vec<String>>,
}

impl<'a> LiveTable<'a> {
    pub(super) fn new(output: &'a Output, tasks: usize) -> LiveTable<'a> {
        LiveTable { output, tasks, shown: Mutex::new(Vec::new()) }
    }

    /// Draws how many each has; none is dead.
    pub(super) fn show<'w>(&self, workers: impl Iterator<Item = (&'w str, Option<usize>)>) {
        if !self.output.has_status() {
            return;
        }
        let lines: Vec<String> = workers.map(|(name, count)| line(name, count, self.tasks)).collect();
        let mut shown = self.lock();
        if *shown != lines {
            self.erase(&shown);
            self.draw(&lines);
            *shown = lines;
        }
    }

    /// Says something above the picture.
    pub(super) fn note(&self, text: &str, output: &Output) {
        let shown = self.lock();
        self.erase(&shown);
        output.note(text);
        self.draw(&shown);
    }

    /// The picture stays as it is, and nothing is drawn over it.
    pub(super) fn end(&self) {
        self.lock().clear();
    }

    fn erase(&self, lines: &[String]) {
        if !lines.is_empty() {
            let _ = write!(std::io::stderr(), "\x1b[{}A\r\x1b[J", lines.len());
        }
    }

    fn draw(&self, lines: &[String]) {
        for line in lines {
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn line(name: &str, count: Option<usize>, tasks: usize) -> String {
    match count {
        Some(count) => format!("  {name:<8} {count:>6} {}", "█".repeat(count * WIDTH / tasks.max(1))),
        None => format!("  {name:<8} killed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_the_share() {
        assert_eq!(line("node-1", Some(500), 1_000), format!("  node-1      500 {}", "█".repeat(30)));
        assert_eq!(line("node-2", Some(0), 1_000), "  node-2        0 ");
        assert_eq!(line("node-3", None, 1_000), "  node-3   killed");
    }
}
