//! A setting that decides for itself unless an operator does: `"auto"`, `true` or `false`.
//!
//! For what belongs to the demo. A shop that sets nothing but its own key must not have to know that
//! these exist in order to be safe from them, so "auto" is on in the bare default run alone.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    #[default]
    Auto,
    /// Somebody asked for it by name.
    On,
    Off,
}

impl Switch {
    /// The word for a switch that nobody set.
    pub const AUTO: &str = "auto";

    /// Is it on, where "auto" means this?
    pub fn is_on(self, auto: bool) -> bool {
        match self {
            Switch::Auto => auto,
            Switch::On => true,
            Switch::Off => false,
        }
    }
}

impl Serialize for Switch {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Switch::Auto => s.serialize_str(Switch::AUTO),
            Switch::On => s.serialize_bool(true),
            Switch::Off => s.serialize_bool(false),
        }
    }
}

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Flag(bool),
            Word(String),
        }
        match Written::deserialize(d)? {
            Written::Flag(true) => Ok(Switch::On),
            Written::Flag(false) => Ok(Switch::Off),
            Written::Word(word) if word == Switch::AUTO => Ok(Switch::Auto),
            Written::Word(_) => Err(serde::de::Error::custom("must be \"auto\", true or false")),
        }
    }
}
