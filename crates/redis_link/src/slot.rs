//! In which slot of a Redis Cluster a key is, and which word of a command is its key.

use redis::{Arg, Cmd};

pub(crate) const SLOTS: u16 = 16_384;

/// The slot of the key of a command; that of one without a key is the first.
pub(crate) fn of_command(command: &Cmd) -> u16 {
    let word = |n: usize| match command.args_iter().nth(n) {
        Some(Arg::Simple(word)) => Some(word),
        _ => None,
    };
    let name = word(0).unwrap_or_default().to_ascii_uppercase();
    let key = match &name[..] {
        b"XGROUP" | b"XINFO" | b"OBJECT" | b"MEMORY" => word(2),
        b"XREADGROUP" | b"XREAD" => {
            let is_streams = |arg: Arg<&[u8]>| match arg {
                Arg::Simple(word) => word.eq_ignore_ascii_case(b"STREAMS"),
                _ => false,
            };
            let before = command.args_iter().position(is_streams);
            before.and_then(|before| word(before + 1))
        }
        _ => word(1),
    };
    of_key(key.unwrap_or_default())
}

/// As `CLUSTER KEYSLOT` says: what stands in the first braces decides, if there is anything.
pub(crate) fn of_key(key: &[u8]) -> u16 {
    crc16(tag_in(key).unwrap_or(key)) % SLOTS
}

fn tag_in(key: &[u8]) -> Option<&[u8]> {
    let from = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[from..].iter().position(|byte| *byte == b'}')?;
    Some(&key[from..from + length]).filter(|tag| !tag.is_empty())
}

/// The CRC that Redis Cluster uses.
fn crc16(text: &[u8]) -> u16 {
    let bit = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    let byte = |crc: u16, byte: &u8| (0..8).fold(crc ^ (u16::from(*byte) << 8), bit);
    text.iter().fold(0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_goes_where_its_key_is() {
        // As `CLUSTER KEYSLOT` says.
        assert_eq!((of_key(b"123456789"), of_key(b"foo")), (12_739, 12_182));
        assert_eq!(
            (of_key(b"seckill:{foo}:meta:42"), of_key(b"{}foo")),
            (12_182, of_key(b"{}foo"))
        );
        assert_eq!(of_command(redis::cmd("GET").arg("foo")), 12_182);
        let catalogue = redis::cmd("SET").arg("foo").arg(r#"{"name":"{bar}"}"#).to_owned();
        assert_eq!(of_command(&catalogue), 12_182);
        let group = redis::cmd("XGROUP").arg("CREATE").arg("foo").arg("g").arg("0").to_owned();
        assert_eq!(of_command(&group), 12_182);
        let read = redis::cmd("XREADGROUP").arg("GROUP").arg("g").arg("streams").to_owned();
        assert_eq!(of_command(&read), of_key(b""), "cut short");
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("g").arg("c").arg("BLOCK").arg(5).arg("STREAMS").arg("foo").arg(">");
        assert_eq!(of_command(&read), 12_182);
        assert_eq!(of_command(&redis::cmd("PING")), 0);
    }
}
