//! Draws: the secrets that decide them, and their record.

use async_trait::async_trait;
use sale::{ActivityId, DrawOutcome, DrawPlace, DrawSecrets, Drawn, ItemId, Millis, SEED_BYTES};

use super::{
    Access, SqlLedger,
    columns::{coded, get, parsed},
    failure::{Failure, Outcome},
    session::{Row, Session, Value, values},
};
use crate::{DRAWN_AT_ONCE_MAX, Draws, Result};

/// The columns of an activity that say it has a draw. One that has is given its secrets, once, in the same
/// transaction: there is no moment at which claims could be gathered and nobody were bound to an order.
pub(super) async fn set_shuffle(
    tx: &mut dyn Session,
    activity: ActivityId,
    shuffle_ms: Millis,
) -> Outcome<()> {
    let commitment = match shuffle_ms {
        0 => None,
        _ => Some(secrets_or_new(tx, activity).await?.commitment()),
    };
    let sql = "UPDATE tb_seckill_activity SET shuffle_ms = ?, draw_commitment = ? WHERE id = ?";
    tx.execute(sql, values![shuffle_ms, commitment, activity]).await?;
    Ok(())
}

async fn secrets_or_new(tx: &mut dyn Session, activity: ActivityId) -> Outcome<DrawSecrets> {
    if let Some(known) = secrets(tx, activity).await? {
        return Ok(known);
    }
    let (mut seed, mut salt) = ([0; SEED_BYTES], [0; SEED_BYTES]);
    let unlucky = |error: getrandom::Error| Failure::Unknown(format!("no randomness: {error}"));
    getrandom::fill(&mut seed).map_err(unlucky)?;
    getrandom::fill(&mut salt).map_err(unlucky)?;
    let drawn = DrawSecrets::new(seed, salt);
    let sql = "INSERT INTO tb_draw (activity_id, seed, salt) VALUES (?, ?, ?)";
    tx.execute(sql, values![activity, drawn.expose_seed(), drawn.expose_salt()]).await?;
    Ok(drawn)
}

async fn secrets(session: &mut dyn Session, activity: ActivityId) -> Outcome<Option<DrawSecrets>> {
    let sql = "SELECT seed, salt FROM tb_draw WHERE activity_id = ?";
    let read = |row: &dyn Row| {
        let (seed, salt): (String, String) = (get(row, 0)?, get(row, 1)?);
        // Not with the words themselves: errors are logged.
        let broken = || Failure::Broken(format!("tb_draw of activity {activity} is no secret"));
        DrawSecrets::from_hex(&seed, &salt).ok_or_else(broken)
    };
    session.first(sql, values![activity], read).await
}

async fn note(tx: &mut dyn Session, item: ItemId, drawn: &[Drawn]) -> Outcome<()> {
    let row = |drawn: &Drawn| {
        [
            item.into(),
            drawn.place.to_string().into(),
            drawn.quantity.into(),
            drawn.outcome.code().into(),
        ]
    };
    let keep = tx.dialect().keep("outcome");
    let into = "tb_draw_place (product_id, place, quantity, outcome)";
    tx.insert(into, drawn.iter().map(row), &keep).await?;
    for outcome in DrawOutcome::ALL {
        let places = drawn.iter().filter(|drawn| drawn.outcome == outcome);
        let places: Vec<String> = places.map(|drawn| drawn.place.to_string()).collect();
        if places.is_empty() {
            continue;
        }
        let sql = "UPDATE tb_draw_place SET outcome = ?
             WHERE product_id = ? AND outcome > ? AND place IN ?";
        let code = outcome.code();
        let better = [code.into(), item.into(), code.into(), Value::list(places)];
        tx.execute(sql, &better).await?;
    }
    Ok(())
}

fn read_drawn(row: &dyn Row) -> Outcome<Drawn> {
    Ok(Drawn {
        place: parsed(row, 0)?,
        quantity: get(row, 1)?,
        outcome: coded(row, 2, DrawOutcome::from_code)?,
    })
}

async fn page(
    session: &mut dyn Session,
    item: ItemId,
    after: Option<DrawPlace>,
    limit: usize,
) -> Outcome<Vec<Drawn>> {
    let sql = "SELECT place, quantity, outcome FROM tb_draw_place
         WHERE product_id = ? AND place > ? ORDER BY place LIMIT ?";
    let after = after.map(|place| place.to_string()).unwrap_or_default();
    session.rows(sql, values![item, after, limit], read_drawn).await
}

async fn at(session: &mut dyn Session, item: ItemId, place: DrawPlace) -> Outcome<Option<Drawn>> {
    let sql = "SELECT place, quantity, outcome FROM tb_draw_place
         WHERE product_id = ? AND place = ?";
    session.first(sql, values![item, place.to_string()], read_drawn).await
}

#[async_trait]
impl Draws for SqlLedger {
    async fn draw_secrets(&self, activity: ActivityId) -> Result<Option<DrawSecrets>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(secrets(session, activity)))
            .await
    }

    async fn note_drawn(&self, item: ItemId, drawn: &[Drawn]) -> Result<()> {
        let lines = drawn[..drawn.len().min(DRAWN_AT_ONCE_MAX)].to_vec();
        self.run(Access::Write, lines, move |tx, lines| Box::pin(note(tx, item, lines))).await
    }

    async fn drawn(
        &self,
        item: ItemId,
        after: Option<DrawPlace>,
        limit: usize,
    ) -> Result<Vec<Drawn>> {
        self.run(Access::Statement, (), move |session, ()| {
            Box::pin(page(session, item, after, limit))
        })
        .await
    }

    async fn drawn_at(&self, item: ItemId, place: DrawPlace) -> Result<Option<Drawn>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(at(session, item, place))).await
    }
}
