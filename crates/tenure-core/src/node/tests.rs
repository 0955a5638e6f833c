//! What a node does: stories of ten lines, one for each sentence that it promises, then a world in which everything goes wrong.

mod attempts;
mod balancing;
mod claiming;
mod commands;
mod dice;
mod ending;
mod late;
mod mixed;
mod orders;
mod process;
mod retention;
mod running;
mod scale;
mod storm;
mod sweep;
mod telling;
mod wire;
mod world;
