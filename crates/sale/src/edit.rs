//! What an operator changes of an activity that is planned.

use std::collections::HashSet;

use crate::{
    Activity, Attributes, Currency, DoorEdit, Invalid, Item, ItemId, ItemWords, Millis,
    NewActivity, NewItem, words::GivenImages,
};

/// What is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivityEdit {
    /// `Some(None)`: it has none any more.
    pub external_id: Option<Option<String>>,
    pub name: Option<String>,
    pub opens_ms: Option<Millis>,
    pub closes_ms: Option<Millis>,
    pub pay_within_ms: Option<Millis>,
    /// `Some(None)`: it does not publish itself any more.
    pub publish_ms: Option<Option<Millis>>,
    pub door: Option<DoorEdit>,
    /// 0: nobody is drawn any more.
    pub shuffle_ms: Option<Millis>,
    /// All the items there will be: one with an id is changed, one without is new, one that is not
    /// named is removed.
    pub items: Option<Vec<ItemEdit>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ItemEdit {
    pub id: Option<ItemId>,
    pub name: Option<String>,
    /// The first picture alone, or all of them.
    pub images: GivenImages,
    pub price: Option<i64>,
    /// `Some(None)`: there is none any more.
    pub origin_price: Option<Option<i64>>,
    pub currency: Option<Currency>,
    pub stock: Option<i64>,
    pub limit_per_user: Option<u32>,
    pub shards: Option<u32>,
    /// `Some(None)`: there is none any more.
    pub sku: Option<Option<String>>,
    pub description: Option<String>,
    /// All the attributes there will be.
    pub attributes: Option<Attributes>,
}

/// A draft as it shall be. `ids[n]` says which item `plan.items[n]` is, if it is not a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftPlan {
    pub plan: NewActivity,
    pub ids: Vec<Option<ItemId>>,
}

impl ActivityEdit {
    /// The whole of it after the edit; not validated yet.
    pub fn of(&self, draft: &Activity) -> Result<DraftPlan, Invalid> {
        let (ids, items) = match &self.items {
            Some(edits) => edited(edits, draft)?,
            None => draft.items.iter().map(|item| (Some(item.id), as_planned(item))).unzip(),
        };
        let plan = NewActivity {
            external_id: self.external_id.clone().unwrap_or_else(|| draft.external_id.clone()),
            name: self.name.clone().unwrap_or_else(|| draft.name.clone()),
            opens_ms: self.opens_ms.unwrap_or(draft.opens_ms),
            closes_ms: self.closes_ms.unwrap_or(draft.closes_ms),
            pay_within_ms: self.pay_within_ms.unwrap_or(draft.pay_within_ms),
            publish_ms: self.publish_ms.unwrap_or(draft.publish_ms),
            door: self.door.unwrap_or_default().of(&draft.door),
            shuffle_ms: self.shuffle_ms.unwrap_or(draft.shuffle_ms()),
            items,
        };
        Ok(DraftPlan { plan, ids })
    }

    /// The first field that can only be changed while it is a draft.
    pub fn beyond_window(&self) -> Option<&'static str> {
        let given = [
            ("external_id", self.external_id.is_some()),
            ("name", self.name.is_some()),
            ("pay_within_ms", self.pay_within_ms.is_some()),
            ("publish_at", self.publish_ms.is_some()),
            // What was committed to before buyers saw it holds.
            ("shuffle_ms", self.shuffle_ms.is_some()),
            ("items", self.items.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(field, _)| field)
    }
}

type Items = (Vec<Option<ItemId>>, Vec<NewItem>);

fn edited(edits: &[ItemEdit], draft: &Activity) -> Result<Items, Invalid> {
    let mut named = HashSet::new();
    let mut items = Items::default();
    for (n, edit) in edits.iter().enumerate() {
        let field = |name: &str| format!("items[{n}].{name}");
        let known = edit.id.and_then(|id| draft.items.iter().find(|item| item.id == id));
        if edit.id.is_some() && known.is_none() {
            let problem = "is no item of this activity; a new one has no id";
            return Err(Invalid::new(field("id"), problem).zh("不是该活动的商品；新增商品不带 id"));
        }
        if edit.id.is_some_and(|id| !named.insert(id)) {
            return Err(Invalid::new(field("id"), "is named twice").zh("重复"));
        }
        items.0.push(edit.id);
        items.1.push(edit.of(known, field)?);
    }
    Ok(items)
}

impl ItemEdit {
    fn of(&self, known: Option<&Item>, field: impl Fn(&str) -> String) -> Result<NewItem, Invalid> {
        let known = known.map(as_planned);
        let missing =
            |name| Invalid::new(field(name), "is needed for a new item").zh("新增商品必须填写");
        let before = known.as_ref();
        Ok(NewItem {
            name: self
                .name
                .clone()
                .or(before.map(|item| item.name.clone()))
                .ok_or_else(|| missing("name"))?,
            image_url: self
                .images
                .first
                .clone()
                .or(before.map(|item| item.image_url.clone()))
                .unwrap_or_default(),
            price: self.price.or(before.map(|item| item.price)).ok_or_else(|| missing("price"))?,
            origin_price: self.origin_price.unwrap_or(before.and_then(|item| item.origin_price)),
            currency: self.currency.or(before.map(|item| item.currency)).unwrap_or(Currency::CNY),
            stock: self.stock.or(before.map(|item| item.stock)).ok_or_else(|| missing("stock"))?,
            limit_per_user: self
                .limit_per_user
                .or(before.map(|item| item.limit_per_user))
                .unwrap_or(1),
            shards: self.shards.or(before.map(|item| item.shards)).unwrap_or(1),
            words: self.words(before.map(|item| item.words.clone()).unwrap_or_default()),
        })
    }

    fn words(&self, before: ItemWords) -> ItemWords {
        ItemWords {
            sku: self.sku.clone().unwrap_or(before.sku),
            description: self.description.clone().unwrap_or(before.description),
            more_images: self.images.more.clone().unwrap_or(before.more_images),
            attributes: self.attributes.clone().unwrap_or(before.attributes),
        }
    }
}

/// Nothing of a draft is sold, so its stock is all there is.
fn as_planned(item: &Item) -> NewItem {
    NewItem {
        name: item.name.clone(),
        image_url: item.image_url.clone(),
        price: item.price.minor,
        origin_price: item.origin_price,
        currency: item.price.currency,
        stock: item.total,
        limit_per_user: item.limit_per_user,
        shards: item.shards,
        words: item.words.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ActivityId, ActivityState, ItemState, Money};

    fn draft() -> Activity {
        let item = |id| Item {
            id: ItemId(id),
            activity: ActivityId(1),
            name: format!("item {id}"),
            image_url: "/a.png".into(),
            price: Money::new(100, Currency::CNY),
            origin_price: Some(200),
            stock: 5,
            total: 5,
            limit_per_user: 2,
            shards: 1,
            version: 0,
            epoch: 0,
            state: ItemState::Draft,
            words: ItemWords { sku: Some(format!("sku-{id}")), ..Default::default() },
        };
        Activity {
            id: ActivityId(1),
            external_id: Some("spring".into()),
            name: "sale".into(),
            opens_ms: 1,
            closes_ms: 2,
            pay_within_ms: 3,
            state: ActivityState::Draft,
            publish_ms: Some(1),
            resume_ms: None,
            given_up: false,
            version: 7,
            door: Default::default(),
            draw: None,
            items: vec![item(41), item(42)],
        }
    }

    #[test]
    fn what_is_not_given_stays() {
        let same = ActivityEdit::default().of(&draft()).unwrap();
        assert_eq!(same.ids, [Some(ItemId(41)), Some(ItemId(42))]);
        assert_eq!((same.plan.name.as_str(), same.plan.publish_ms), ("sale", Some(1)));
        let edit = ActivityEdit {
            publish_ms: Some(None),
            items: Some(vec![
                ItemEdit {
                    name: Some("new".into()),
                    price: Some(1),
                    stock: Some(2),
                    ..Default::default()
                },
                ItemEdit { id: Some(ItemId(42)), origin_price: Some(None), ..Default::default() },
            ]),
            ..Default::default()
        };
        let DraftPlan { plan, ids } = edit.of(&draft()).unwrap();
        assert_eq!((ids, plan.publish_ms), (vec![None, Some(ItemId(42))], None));
        assert_eq!((plan.items[0].currency, plan.items[0].limit_per_user), (Currency::CNY, 1));
        let kept = &plan.items[1];
        assert_eq!((kept.name.as_str(), kept.price, kept.origin_price), ("item 42", 100, None));
        assert_eq!(
            (kept.image_url.as_str(), kept.words.sku.as_deref()),
            ("/a.png", Some("sku-42"))
        );
        assert_eq!(plan.items[0].words, ItemWords::default());
        assert_eq!(plan.external_id.as_deref(), Some("spring"));
        assert_eq!(edit.beyond_window(), Some("publish_at"));
        let window = ActivityEdit { opens_ms: Some(1), ..Default::default() };
        assert_eq!(window.beyond_window(), None);
    }

    #[test]
    fn the_shops_words_are_changed_one_by_one() {
        let edit = ActivityEdit {
            external_id: Some(None),
            items: Some(vec![ItemEdit {
                id: Some(ItemId(41)),
                images: GivenImages { first: Some("/b.png".into()), more: None },
                sku: Some(None),
                description: Some("two\nlines".into()),
                ..Default::default()
            }]),
            ..Default::default()
        };
        let plan = edit.of(&draft()).unwrap().plan;
        assert_eq!(plan.external_id, None);
        let item = &plan.items[0];
        assert_eq!((item.image_url.as_str(), &item.words.sku), ("/b.png", &None));
        assert_eq!(item.words.description, "two\nlines");
        assert_eq!(edit.beyond_window(), Some("external_id"));
    }

    #[test]
    fn an_item_that_is_not_its_own_or_lacks_something_is_refused() {
        let refused = |items: Vec<ItemEdit>| {
            let edit = ActivityEdit { items: Some(items), ..Default::default() };
            edit.of(&draft()).unwrap_err().field
        };
        let named = |id| ItemEdit { id: Some(ItemId(id)), ..Default::default() };
        assert_eq!(refused(vec![named(41), named(43)]), "items[1].id");
        assert_eq!(refused(vec![named(41), named(41)]), "items[1].id");
        assert_eq!(refused(vec![ItemEdit::default()]), "items[0].name");
        let nameless = ItemEdit { name: Some("x".into()), stock: Some(1), ..Default::default() };
        assert_eq!(refused(vec![nameless]), "items[0].price");
    }
}
