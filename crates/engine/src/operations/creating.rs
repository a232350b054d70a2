//! Drafts made: one, or as many as a file holds, all of them or none.
//!
//! Whoever is not answered asks again, and may do so without making anything twice: with a key, or by
//! giving each activity the shop's own id. The key is looked up before anything is judged, for a plan that
//! made sense the first time may be over by the second.

use std::{collections::HashSet, fmt::Write};

use ledger::{
    CreateKey, CreatedActivities, CreatedActivity, LedgerError, NewActivities, WhenTaken,
};
use sale::{Activity, Invalid, NewActivity};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{LOCAL_TOKEN, OperateError, Plans, Result};
use crate::actor::{Actor, CLI, audit_entry};

pub const IMPORT_ACTIVITIES_MAX: usize = 1_000;
/// Of all activities together.
pub const IMPORT_ITEMS_MAX: usize = 10_000;

/// One of the activities that were to be made makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPlan {
    /// Which one.
    pub n: usize,
    pub why: Invalid,
}

impl Plans {
    pub async fn create(
        &self,
        who: impl Into<Actor>,
        new: NewActivity,
        key: Option<String>,
    ) -> Result<Activity> {
        let made = self.create_all(who.into(), vec![new], key, WhenTaken::Refuse).await;
        let made = made.map_err(|error| match error {
            // There is only one whose fault it can be.
            OperateError::BadPlans(bad) => match bad.into_iter().next() {
                Some(bad) => OperateError::Invalid(bad.why),
                None => OperateError::Ledger(LedgerError::NotFound),
            },
            other => other,
        })?;
        made.into_iter().next().map(|made| made.activity).ok_or(OperateError::NotFound)
    }

    /// An activity that the shop knows by its `external_id` already stays as it is.
    pub async fn import(
        &self,
        who: impl Into<Actor>,
        new: Vec<NewActivity>,
        key: Option<String>,
    ) -> Result<Vec<CreatedActivity>> {
        check_size(&new)?;
        self.create_all(who.into(), new, key, WhenTaken::Keep).await
    }

    /// What an import would be refused for.
    pub fn check_import(&self, plans: &[NewActivity]) -> Result<()> {
        check_size(plans)?;
        self.check_all(plans)
    }

    fn check_all(&self, plans: &[NewActivity]) -> Result<()> {
        let now_ms = self.shared.now_ms();
        let mut bad = Vec::new();
        let mut seen = HashSet::new();
        for (n, plan) in plans.iter().enumerate() {
            let problems = plan.problems(now_ms).into_iter().chain(self.check_shards(plan).err());
            bad.extend(problems.map(|why| BadPlan { n, why }));
            if plan.external_id.as_ref().is_some_and(|id| !seen.insert(id)) {
                let why = Invalid::new("external_id", "is that of another one of these activities");
                bad.push(BadPlan { n, why: why.zh("与其中另一活动重复") });
            }
        }
        if bad.is_empty() { Ok(()) } else { Err(OperateError::BadPlans(bad)) }
    }

    async fn create_all(
        &self,
        who: Actor,
        plans: Vec<NewActivity>,
        key: Option<String>,
        when_taken: WhenTaken,
    ) -> Result<Vec<CreatedActivity>> {
        let key = key.map(|key| CreateKey {
            who: key_owner(&who).into(),
            key,
            body_hash: hash_of(&plans, when_taken),
        });
        let ledger = &self.shared.ledger;
        if let Some(key) = &key
            && let Some(known) = ledger.created_before(key, self.shared.now_ms()).await?
        {
            return created(known);
        }
        self.check_all(&plans)?;
        let audit = Some(audit_entry(who, "activity.create", "activity".into(), json!({})));
        let new = NewActivities { plans, when_taken, key, audit };
        created(ledger.create_activities(&new, self.shared.now_ms()).await?)
    }
}

/// As many as one transaction may hold.
fn check_size(plans: &[NewActivity]) -> std::result::Result<(), Invalid> {
    let items: usize = plans.iter().map(|plan| plan.items.len()).sum();
    if plans.is_empty() || plans.len() > IMPORT_ACTIVITIES_MAX || items > IMPORT_ITEMS_MAX {
        let range = format!(
            "must be 1 to {IMPORT_ACTIVITIES_MAX} activities with {IMPORT_ITEMS_MAX} items in all"
        );
        let zh = format!(
            "必须为 1 到 {IMPORT_ACTIVITIES_MAX} 个活动，商品总数不超过 {IMPORT_ITEMS_MAX}"
        );
        return Err(Invalid::new("activities", range).zh(zh));
    }
    Ok(())
}

fn created(done: CreatedActivities) -> Result<Vec<CreatedActivity>> {
    match done {
        CreatedActivities::Made(created) | CreatedActivities::MadeBefore(created) => Ok(created),
        CreatedActivities::KeyReused { made } => Err(OperateError::KeyReused(made)),
        CreatedActivities::Taken { by, .. } => Err(OperateError::Taken(by)),
    }
}

/// Commands of one machine come with another token after each start of its server, or with none; their
/// keys mean the same all the time.
fn key_owner(who: &Actor) -> &str {
    if who.name.starts_with(LOCAL_TOKEN) { CLI } else { &who.name }
}

/// The same for whatever means the same, however it was written.
fn hash_of(plans: &[NewActivity], when_taken: WhenTaken) -> String {
    let asked = json!({"keep": when_taken == WhenTaken::Keep, "plans": plans});
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(asked.to_string()) {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
