//! Stories of whole sales, against real `seckill` processes over real HTTP.
//!
//! Every story starts a server of its own on a free port with a data directory of its own, and
//! almost all of them end with the checker: nothing oversold, nothing stranded, nothing lost.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

/// Every story of the list is a test in the solo profile and one in the cluster.
macro_rules! in_every_profile {
    ($($story:ident),* $(,)?) => {
        $crate::tests_in! { in_solo, Solo, $($story),* }
        $crate::tests_in! { in_cluster, Cluster, $($story),* }
    };
}

/// Stories about the files of the solo profile.
macro_rules! only_in_solo {
    ($($story:ident),* $(,)?) => {
        $crate::tests_in! { only_in_solo, Solo, $($story),* }
    };
}

macro_rules! tests_in {
    ($module:ident, $profile:ident, $($story:ident),*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $story() {
                super::$story($crate::fixtures::Profile::$profile).await;
            })*
        }
    };
}

use {in_every_profile, only_in_solo, tests_in};

mod api_page;
mod asking;
mod browser;
mod button;
mod clients;
mod cluster;
mod commands;
mod console;
mod contract;
mod crowded;
mod disk;
mod doors;
mod engines;
mod failover;
mod failures;
mod fair_start;
mod fixtures;
mod front_door;
mod guide;
mod handbook;
mod idle;
mod kills;
mod lists;
mod look_back;
mod manners;
mod money;
mod one_of_many;
mod operators;
mod operators_desk;
mod origins;
mod outbox;
mod payments_page;
mod pictures;
mod plans;
mod providers;
mod proxied;
mod push;
mod real_money;
mod real_money_in_a_browser;
mod rebuild;
mod refunds;
mod rehearse;
mod rotation;
mod rush;
mod sentinel;
mod shop;
mod shop_page;
mod sockets;
mod startup;
mod traffic;
mod watching;
mod webhooks;
mod widget;
