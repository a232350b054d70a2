//! The two files of Swagger UI that the page of the API needs, out of the archive that
//! `utoipa-swagger-ui-vendored` carries, as they are sent: in gzip.
//!
//! An entry of the archive is a *deflate* stream, and a gzip file is one as well, with another head and
//! foot. So nothing is unpacked or packed here: the bytes are copied.

use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED;

/// The end of an entry's name, and the path that pages know the file by.
const WANTED: [(&str, &str); 2] = [
    ("/dist/swagger-ui-bundle.js", "swagger/swagger-ui-bundle.js"),
    ("/dist/swagger-ui.css", "swagger/swagger-ui.css"),
];

/// What every gzip file begins with here: deflate, no name, no time, packed as well as can be, made anywhere.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255];
const DEFLATED: u16 = 8;

/// Of the directory at the end of an archive.
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const ENTRY_BYTES: usize = 46;
/// Before the bytes of a file.
const FILE: [u8; 4] = *b"PK\x03\x04";
const FILE_BYTES: usize = 30;
/// The end of the directory; a remark may follow.
const END: [u8; 4] = *b"PK\x05\x06";

/// The files by their paths, in gzip. A build whose archive is another than it knows stops.
pub(crate) fn files() -> [(&'static str, Vec<u8>); 2] {
    WANTED.map(|(end, path)| {
        let entry = entries(SWAGGER_UI_VENDORED).find(|entry| entry.name.ends_with(end));
        let entry = entry.unwrap_or_else(|| panic!("Swagger UI comes without {end}"));
        (path, gzip(&entry))
    })
}

struct Entry<'a> {
    name: &'a str,
    crc: u32,
    unpacked_bytes: u32,
    deflated: &'a [u8],
}

fn gzip(entry: &Entry) -> Vec<u8> {
    let foot = [entry.crc.to_le_bytes(), entry.unpacked_bytes.to_le_bytes()].concat();
    [&GZIP_HEAD, entry.deflated, &foot].concat()
}

fn number<const BYTES: usize>(archive: &[u8], at: usize) -> [u8; BYTES] {
    archive[at..at + BYTES].try_into().expect("as many bytes as were taken")
}

fn u16_at(archive: &[u8], at: usize) -> usize {
    u16::from_le_bytes(number(archive, at)).into()
}

fn u32_at(archive: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(number(archive, at))
}

/// What is in the archive.
fn entries(archive: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let end = archive.windows(END.len()).rposition(|bytes| bytes == END);
    let end = end.expect("an archive ends with its directory");
    let mut at = u32_at(archive, end + 16) as usize;
    std::iter::from_fn(move || {
        if number(archive, at) != ENTRY {
            return None;
        }
        let here = at;
        let name_bytes = u16_at(archive, here + 28);
        at += ENTRY_BYTES + name_bytes + u16_at(archive, here + 30) + u16_at(archive, here + 32);
        let name = &archive[here + ENTRY_BYTES..here + ENTRY_BYTES + name_bytes];
        let file = u32_at(archive, here + 42) as usize;
        assert_eq!(number(archive, file), FILE, "every entry leads to a file");
        let start = file + FILE_BYTES + u16_at(archive, file + 26) + u16_at(archive, file + 28);
        let packed_bytes = u32_at(archive, here + 20) as usize;
        let method = u16::from_le_bytes(number(archive, here + 10));
        Some(Entry {
            name: std::str::from_utf8(name).unwrap_or_default(),
            crc: u32_at(archive, here + 16),
            unpacked_bytes: u32_at(archive, here + 24),
            // What was stored as it is would not be a deflate stream; none that we want is.
            deflated: if method == DEFLATED { &archive[start..start + packed_bytes] } else { &[] },
        })
    })
}
