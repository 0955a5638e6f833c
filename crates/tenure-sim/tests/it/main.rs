//! The simulator keeps its own promises: stories can be told again, and broken rules are noticed.

mod broken_rules;
mod same_seed;
mod scenarios;
