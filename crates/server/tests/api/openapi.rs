//! The OpenAPI document against the routes and the snapshot in the repository.

use std::collections::HashSet;

use axum::body::Body;
use http::{Method, Request};
use server::{
    api::{document, router},
    problem::Problem,
};
use tower::ServiceExt;

use crate::shop::Shop;

/// Everything the document says exists, and nothing else under the same paths.
#[tokio::test]
async fn the_document_and_the_routes_agree() {
    let shop = Shop::open().await;
    let document = serde_json::to_value(document()).unwrap();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let filled = path.replace("{id}", "1").replace("{no}", "SK0000000000000000001");
        let filled = filled.replace("{txn}", "x").replace("{provider}", "x").replace("{name}", "x");
        let filled = filled.replace("{delivery}", "1").replace("{kind}", "members");
        let filled = filled.replace("{user}", "x");
        assert!(!filled.contains('{'), "{path}: give the test a value for it");
        let mut methods: Vec<String> =
            operations.as_object().unwrap().keys().map(|m| m.to_uppercase()).collect();
        if methods.iter().any(|method| method == "GET") {
            methods.push("HEAD".into());
        }
        for method in &methods {
            let router = router(shop.app.clone());
            let request = Request::builder().method(method.as_str()).uri(&filled);
            let request = request.body(Body::empty()).unwrap();
            let response = router.oneshot(request).await.unwrap();
            // A handler that does not find something says so with a problem; the router is silent.
            let by_handler = response.extensions().get::<Problem>().is_some();
            let missing = matches!(response.status().as_u16(), 404 | 405);
            assert!(!missing || by_handler, "{method} {path} is not routed");
        }
        let wrong = shop.ask(Method::TRACE, &filled).send().await;
        wrong.is_refused(405, "method_not_allowed", None);
        let mut allowed: Vec<_> =
            wrong.headers["allow"].to_str().unwrap().split(',').map(str::to_owned).collect();
        allowed.sort();
        methods.sort();
        assert_eq!(allowed, methods, "{path} has a method that is not documented");
    }
    // Routes come into the table with their description or not at all.
    assert!(!include_str!("../../src/api/mod.rs").contains(".route(\""));
}

#[test]
fn every_operation_is_described() {
    let document = serde_json::to_value(document()).unwrap();
    let tags: Vec<_> =
        document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    let mut ids = HashSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let at = format!("{method} {path}");
            assert!(ids.insert(&operation["operationId"]), "{at}: its id is another's");
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(
                    response["description"] != "" && response["description"].is_string(),
                    "{at} {status}"
                );
            }
            assert!(operation["summary"].is_string(), "{at} has no summary");
            assert!(tags.contains(&&operation["tags"][0]), "{at} has no tag");
            // Whatever is answered is listed by its status.
            assert!(operation["responses"]["default"].is_null(), "{at}");
            assert!(operation["responses"]["503"].is_object(), "{at}");
            assert_eq!(
                operation["security"].is_array(),
                ["buyer", "shop", "admin"].contains(&operation["tags"][0].as_str().unwrap()),
                "{at}"
            );
        }
    }
}

/// The document is part of the repository, so that a change of the API is seen in a review.
/// `UPDATE_SNAPSHOTS=1 cargo test -p server --test api openapi` writes it.
#[test]
fn the_document_in_the_repository_is_this_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let served = document().to_pretty_json().unwrap() + "\n";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap();
        std::fs::write(path, &served).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == served,
        "docs/openapi.json is out of date: set UPDATE_SNAPSHOTS=1 and look at the difference"
    );
}
