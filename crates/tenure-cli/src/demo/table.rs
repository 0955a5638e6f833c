//! A live table of the tasks per worker, on a terminal only.

use std::io::Write;
use std::sync::Mutex;

use crate::output::Output;

/// The width of the bar of a worker that runs all tasks.
const WIDTH: usize = 60;

/// A table that is redrawn in place.
pub(super) struct LiveTable<'a> {
    output: &'a Output,
    tasks: usize,
    shown: Mutex<Vec<String>>,
}

impl<'a> LiveTable<'a> {
    pub(super) fn new(output: &'a Output, tasks: usize) -> LiveTable<'a> {
        LiveTable { output, tasks, shown: Mutex::new(Vec::new()) }
    }

    /// Draws the number of tasks of each worker; `None` for a killed one. Redraws only after a change, so that the terminal does not flicker.
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

    /// Prints a note above the table.
    pub(super) fn note(&self, text: &str, output: &Output) {
        let shown = self.lock();
        self.erase(&shown);
        output.note(text);
        self.draw(&shown);
    }

    /// Leaves the table on the screen and stops redrawing it.
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
    fn bar_is_proportional_to_tasks() {
        assert_eq!(line("node-1", Some(500), 1_000), format!("  node-1      500 {}", "█".repeat(30)));
        assert_eq!(line("node-2", Some(0), 1_000), "  node-2        0 ");
        assert_eq!(line("node-3", None, 1_000), "  node-3   killed");
    }
}
