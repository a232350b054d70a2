//! The one executable; every role is a sub-command.

use std::process::ExitCode;

fn main() -> ExitCode {
    server::cli::main()
}
