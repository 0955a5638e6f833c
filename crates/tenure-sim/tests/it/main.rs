//! The simulator keeps its own promises: runs can be replayed, and broken rules are noticed.

#[cfg(tenure_sabotage)]
mod broken_rules;
mod same_seed;
mod scenarios;
