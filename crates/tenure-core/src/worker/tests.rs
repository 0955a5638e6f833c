//! What a node does: stories of ten lines, one for each sentence that it promises, then a world in which everything goes wrong.

mod attempts;
mod claiming;
mod commands;
mod events;
mod late_replies;
mod mixed;
mod node_commands;
mod process;
mod rebalance;
mod retention;
mod rng;
mod running;
mod scale;
mod shutdown;
mod storm;
mod sweep;
mod wire;
mod world;
