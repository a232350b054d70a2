//! The bill of a day: a zip with a table in GBK, its columns named in a line of their own, comments around
//! it, and a second file with sums.
//!
//! Of GBK nothing is decoded: what we need is digits, and the names of a few columns, which are compared
//! as the bytes that they are. In GBK no part of a letter is a comma or the end of a line.

use std::io::Read;

use flate2::{Crc, read::DeflateDecoder};
use sale::{Currency, Money};

use crate::{BillLine, beijing};

/// What a file of the zip may become.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// There are two.
const FILES_MAX: usize = 16;

/// The names of columns and of kinds, in the letters of a file.
struct Words {
    /// 支付宝交易号
    transaction: &'static [u8],
    /// 商户订单号
    order: &'static [u8],
    /// 业务类型
    kind: &'static [u8],
    /// 完成时间
    time: &'static [u8],
    /// 订单金额（元）
    amount: &'static [u8],
    /// 交易
    charge: &'static [u8],
    /// 退款
    refund: &'static [u8],
}

const GBK: Words = Words {
    transaction: b"\xd6\xa7\xb8\xb6\xb1\xa6\xbd\xbb\xd2\xd7\xba\xc5",
    order: b"\xc9\xcc\xbb\xa7\xb6\xa9\xb5\xa5\xba\xc5",
    kind: b"\xd2\xb5\xce\xf1\xc0\xe0\xd0\xcd",
    time: b"\xcd\xea\xb3\xc9\xca\xb1\xbc\xe4",
    amount: b"\xb6\xa9\xb5\xa5\xbd\xf0\xb6\xee\xa3\xa8\xd4\xaa\xa3\xa9",
    charge: b"\xbd\xbb\xd2\xd7",
    refund: b"\xcd\xcb\xbf\xee",
};

const UTF_8: Words = Words {
    transaction: "支付宝交易号".as_bytes(),
    order: "商户订单号".as_bytes(),
    kind: "业务类型".as_bytes(),
    time: "完成时间".as_bytes(),
    amount: "订单金额（元）".as_bytes(),
    charge: "交易".as_bytes(),
    refund: "退款".as_bytes(),
};

pub(super) fn lines(zip: &[u8]) -> Result<Vec<BillLine>, String> {
    for file in files(zip)? {
        let file = file?;
        for words in [&GBK, &UTF_8] {
            if let Some(lines) = table(&file, words) {
                return lines;
            }
        }
    }
    Err("the bill has no table of trades".into())
}

/// Where the columns are that we need, and how many there are.
struct Columns<'w> {
    words: &'w Words,
    transaction: usize,
    order: usize,
    kind: usize,
    time: usize,
    amount: usize,
    count: usize,
}

/// The lines of a table; none if this file has no such table.
fn table(file: &[u8], words: &Words) -> Option<Result<Vec<BillLine>, String>> {
    let mut rows = file.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let columns = rows.find_map(|row| Columns::of(row, words))?;
    let rows = rows.take_while(|row| !row.starts_with(b"#")).filter(|row| !row.is_empty());
    let lines = rows.map(|row| {
        let line = columns.line(row);
        line.ok_or_else(|| {
            let shown: String = String::from_utf8_lossy(row).chars().take(80).collect();
            format!("a line of the bill cannot be read: {shown}")
        })
    });
    Some(lines.collect())
}

impl<'w> Columns<'w> {
    fn of(row: &[u8], words: &'w Words) -> Option<Columns<'w>> {
        let names: Vec<&[u8]> = row.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect();
        let at = |name: &[u8]| names.iter().position(|column| *column == name);
        Some(Columns {
            words,
            transaction: at(words.transaction)?,
            order: at(words.order)?,
            kind: at(words.kind)?,
            time: at(words.time)?,
            amount: at(words.amount)?,
            count: names.len(),
        })
    }

    /// A comma too many may be in the item's name, before the times, or in the remark at the end.
    fn line(&self, row: &[u8]) -> Option<BillLine> {
        let values: Vec<&[u8]> = row.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect();
        let too_many = values.len().checked_sub(self.count)?;
        (0..=too_many).find_map(|before| self.line_of(&values, before))
    }

    fn line_of(&self, values: &[&[u8]], before: usize) -> Option<BillLine> {
        let text = |at: usize| std::str::from_utf8(values.get(at)?).ok();
        let refund = match *values.get(self.kind)? {
            kind if kind == self.words.charge => false,
            kind if kind == self.words.refund => true,
            _ => return None,
        };
        let amount = text(self.amount + before)?;
        let amount = if refund { amount.strip_prefix('-').unwrap_or(amount) } else { amount };
        Some(BillLine {
            provider_txn: text(self.transaction)?.to_owned(),
            order_no: text(self.order)?.to_owned(),
            amount: Money::from_text(amount, Currency::CNY).ok()?,
            at_ms: beijing::parse_plain(text(self.time + before)?)?,
            refund,
        })
    }
}

/// The files of a zip, one after the other, as its directory at the end lists them.
fn files(zip: &[u8]) -> Result<impl Iterator<Item = Result<Vec<u8>, String>> + '_, String> {
    const END: &[u8] = b"PK\x05\x06";
    let bad = || "the bill is no zip file that can be read".to_owned();
    let end = zip.windows(END.len()).rposition(|four| four == END).ok_or_else(bad)?;
    let count = number(zip, end + 10, 2).ok_or_else(bad)?;
    let mut at = number(zip, end + 16, 4).ok_or_else(bad)?;
    let mut entries = Vec::new();
    for _ in 0..count.min(FILES_MAX) {
        let entry = Entry::at(zip, at).ok_or_else(bad)?;
        at = entry.next;
        entries.push(entry);
    }
    Ok(entries.into_iter().map(move |entry| entry.content(zip).ok_or_else(bad)))
}

/// A line of the directory of a zip.
struct Entry {
    deflated: bool,
    crc: u32,
    packed: usize,
    starts: usize,
    next: usize,
}

impl Entry {
    fn at(zip: &[u8], at: usize) -> Option<Entry> {
        zip.get(at..at + 4).filter(|four| *four == b"PK\x01\x02")?;
        let field = |offset: usize, bytes: usize| number(zip, at + offset, bytes);
        let deflated = match field(10, 2)? {
            0 => false,
            8 => true,
            _ => return None,
        };
        let texts = field(28, 2)? + field(30, 2)? + field(32, 2)?;
        Some(Entry {
            deflated,
            crc: u32::try_from(field(16, 4)?).ok()?,
            packed: field(20, 4)?,
            starts: field(42, 4)?,
            next: at + 46 + texts,
        })
    }

    fn content(&self, zip: &[u8]) -> Option<Vec<u8>> {
        zip.get(self.starts..self.starts.checked_add(4)?).filter(|four| *four == b"PK\x03\x04")?;
        let texts = number(zip, self.starts + 26, 2)? + number(zip, self.starts + 28, 2)?;
        let from = self.starts + 30 + texts;
        let packed = zip.get(from..from.checked_add(self.packed)?)?;
        let mut content = Vec::new();
        if self.deflated {
            let mut unpacking = DeflateDecoder::new(packed).take(FILE_BYTES_MAX + 1);
            unpacking.read_to_end(&mut content).ok()?;
        } else {
            content.extend_from_slice(packed);
        }
        let mut crc = Crc::new();
        crc.update(&content);
        (content.len() as u64 <= FILE_BYTES_MAX && crc.sum() == self.crc).then_some(content)
    }
}

/// The least byte first.
fn number(zip: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let field = zip.get(at..at.checked_add(bytes)?)?;
    Some(field.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
}
