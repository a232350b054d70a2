//! What no edit of a draft may do, in either engine.
//!
//! An item begins without a stock log: its first row starts from the stock it was made with. Once there
//! is a row, the stock changes by further rows only, or the chain would break; and the item stays, or
//! its rows would be of nothing.

use sale::{Invalid, ItemId};

pub(crate) fn stock_stays(n: usize, total: i64) -> Invalid {
    let problem = format!("was adjusted and is {total}: change it by another adjustment");
    Invalid::new(format!("items[{n}].stock"), problem)
        .zh(format!("已做过库存调整，现为 {total}，请继续通过库存调整修改"))
}

pub(crate) fn history_stays(id: ItemId) -> Invalid {
    let problem = format!("must keep item {id}: its stock was adjusted, and that is on record");
    Invalid::new("items", problem).zh(format!("必须保留商品 {id}：其库存调整已有记录"))
}
