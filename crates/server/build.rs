//! Rebuilds the crate when a file appears under `web`; the embedding itself only sees changes of
//! files that were there before.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../web");
}
