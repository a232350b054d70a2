//! Has the linker keep one of several functions whose machine code is the same: the same code for other
//! types is a tenth of what a server of many handlers is made of.
//!
//! Two of them have one address then. Rust promises nobody anything else, and what C we have (SQLite,
//! *ring*) has been linked so in browsers for years.
//!
//! Only the linker that comes with Rust is asked, where it is the one that is used: whoever has chosen
//! another one may have one that does not know how.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let usual = is("CARGO_CFG_TARGET_ARCH", "x86_64")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu");
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let chosen = env::var_os("RUSTC_LINKER").is_some() || flags.contains("link");
    if is("PROFILE", "release") && usual && !chosen {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
