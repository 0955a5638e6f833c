//! The file engine: SQLite shared by the processes of one machine.
