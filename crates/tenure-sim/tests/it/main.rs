//! The simulator keeps its own promises: stories can be told again, and broken rules are noticed.

#[cfg(tenure_sabotage)]
mod broken_rules;
mod same_seed;
mod scenarios;
