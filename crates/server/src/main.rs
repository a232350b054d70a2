//! The one executable; every role is a sub-command.

use std::process::ExitCode;

/// A claim is made in one thread, decided in another and written in a third, which the system's
/// allocator answers with locks and returned pages; see docs/PERFORMANCE.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    server::cli::main()
}
