//! Times in requests: Unix milliseconds, or ISO 8601 with an offset. Answers are always milliseconds.

use std::{borrow::Cow, fmt};

use sale::{InvalidTime, Millis, check_time, parse_iso_time, parse_time};
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{KnownFormat, ObjectBuilder, OneOfBuilder, RefOr, Schema, SchemaFormat, Type},
};

/// A time in a JSON body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenTime(pub(super) Millis);

/// A time in a query, where everything is text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryTime(pub(super) Millis);

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = GivenTime;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unix milliseconds, or ISO 8601 with an offset")
    }

    fn visit_i64<E: Error>(self, ms: i64) -> Result<GivenTime, E> {
        check_time(ms).map(GivenTime).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, ms: u64) -> Result<GivenTime, E> {
        let ms = i64::try_from(ms).map_err(|_| E::custom(InvalidTime::TooLate))?;
        self.visit_i64(ms)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<GivenTime, E> {
        parse_iso_time(text).map(GivenTime).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for GivenTime {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TimeVisitor)
    }
}

impl<'de> Deserialize<'de> for QueryTime {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        parse_time(&with_plus(&text)).map(QueryTime).map_err(D::Error::custom)
    }
}

/// In a query a `+` that is not written as `%2B` means a space. Where an offset's sign should be, a
/// space means nothing else than that plus.
fn with_plus(text: &str) -> Cow<'_, str> {
    let sign_at = text.len().saturating_sub("+08:00".len());
    match text.get(sign_at..sign_at + 1) {
        Some(" ") if text[..sign_at].contains(':') => {
            Cow::Owned(format!("{}+{}", &text[..sign_at], &text[sign_at + 1..]))
        }
        _ => Cow::Borrowed(text),
    }
}

impl PartialSchema for GivenTime {
    fn schema() -> RefOr<Schema> {
        let ms = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .description(Some("Unix milliseconds"))
            .minimum(Some(sale::TIME_MS_MIN))
            .maximum(Some(sale::TIME_MS_MAX - 1))
            .examples([serde_json::json!(1_796_126_400_000_i64)]);
        let iso = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("ISO 8601 with an offset, from 2001 to 2199"))
            .examples([serde_json::json!("2030-11-11T20:00:00+08:00")]);
        let either = OneOfBuilder::new().item(ms).item(iso);
        RefOr::T(Schema::OneOf(either.description(Some("An instant.")).build()))
    }
}

impl ToSchema for GivenTime {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_or_says_its_offset() {
        let read = |json: &str| serde_json::from_str::<GivenTime>(json).map(|GivenTime(ms)| ms);
        assert_eq!(read("1796126400000").unwrap(), 1_796_126_400_000);
        assert_eq!(read("\"2026-12-01T20:00:00+08:00\"").unwrap(), 1_796_126_400_000);
        for bad in
            ["\"1796126400000\"", "1796126400", "1.5", "null", "true", "18446744073709551615"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plus_that_became_a_space_is_still_an_offset() {
        for text in [
            "1796126400000",
            "2026-12-01T20:00:00+08:00",
            "2026-12-01T20:00:00 08:00",
            "2026-12-01 20:00:00 08:00",
            "2026-12-01T12:00Z",
        ] {
            assert_eq!(parse_time(&with_plus(text)), Ok(1_796_126_400_000), "{text}");
        }
        assert_eq!(parse_time(&with_plus("2026-12-01 20:00")), Err(InvalidTime::NoOffset));
        assert!(parse_time(&with_plus("年月日 20:00")).is_err());
    }
}
