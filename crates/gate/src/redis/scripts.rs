//! The scripts, one file each beside this one; their heads say what they take and answer.

use redis_link::Script;

pub(super) static ADMIT: Script = Script::new(include_str!("lua/admit.lua"));
pub(super) static READMIT: Script = Script::new(include_str!("lua/readmit.lua"));
pub(super) static RELEASE: Script = Script::new(include_str!("lua/release.lua"));
pub(super) static ADJUST: Script = Script::new(include_str!("lua/adjust.lua"));
pub(super) static FORGET_ADJUST: Script = Script::new(include_str!("lua/forget_adjust.lua"));
pub(super) static BEGIN_LOAD: Script = Script::new(include_str!("lua/begin_load.lua"));
pub(super) static FILL: Script = Script::new(include_str!("lua/fill.lua"));
pub(super) static FINISH_LOAD: Script = Script::new(include_str!("lua/finish_load.lua"));
pub(super) static CLOCK: Script = Script::new(include_str!("lua/clock.lua"));
pub(super) static SHUT: Script = Script::new(include_str!("lua/shut.lua"));
pub(super) static ACK: Script = Script::new(include_str!("lua/ack.lua"));
pub(super) static TAKE_UNITS: Script = Script::new(include_str!("lua/take_units.lua"));
pub(super) static GIVE_UNITS: Script = Script::new(include_str!("lua/give_units.lua"));
pub(super) static READ_SHARDS: Script = Script::new(include_str!("lua/read_shards.lua"));
pub(super) static PULSE: Script = Script::new(include_str!("lua/pulse.lua"));
pub(super) static WIPE: Script = Script::new(include_str!("lua/wipe.lua"));
pub(super) static PUT_STOCK: Script = Script::new(include_str!("lua/put_stock.lua"));
pub(super) static SETTLE_MOVE: Script = Script::new(include_str!("lua/settle_move.lua"));
pub(super) static HELD: Script = Script::new(include_str!("lua/held.lua"));
pub(super) static ADOPT: Script = Script::new(include_str!("lua/adopt.lua"));
pub(super) static KEEP_LOADING: Script = Script::new(include_str!("lua/keep_loading.lua"));
pub(super) static GATHER: Script = Script::new(include_str!("lua/gather.lua"));
pub(super) static SWEEP: Script = Script::new(include_str!("lua/sweep.lua"));
pub(super) static TIDY_GROUP: Script = Script::new(include_str!("lua/tidy_group.lua"));
pub(super) static ABANDON_LOAD: Script = Script::new(include_str!("lua/abandon_load.lua"));
pub(super) static OUTLINE: Script = Script::new(include_str!("lua/outline.lua"));
