//! Handlers into the table of routes, by the path and method that their description names.
//!
//! With debug assertions that is `utoipa_axum::routes!`, which puts the whole description into the document
//! ([`super::document`]). Without them the same is routed and only the path is asked for, so that what else
//! describes the handler is not compiled.

#[cfg(debug_assertions)]
pub(super) use utoipa_axum::routes;

#[cfg(not(debug_assertions))]
mod bare {
    use axum::routing::MethodFilter;
    pub(in super::super) use utoipa::openapi::path::Paths;
    use utoipa::openapi::{HttpMethod, path::Operation};
    use utoipa_axum::PathItemExt;

    /// Adds a path that is described nowhere.
    pub(in super::super) fn add(
        paths: &mut Paths,
        path: &str,
        methods: Vec<HttpMethod>,
    ) -> MethodFilter {
        let filters = methods.iter().map(PathItemExt::to_method_filter);
        let filter = filters.reduce(MethodFilter::or);
        paths.add_path_operation(path, methods, Operation::default());
        // `utoipa::path` does not compile without a method.
        filter.unwrap_or(MethodFilter::GET)
    }

    macro_rules! routes {
        ($($handler:path),+ $(,)?) => {{
            let mut paths = $crate::api::routing::Paths::new();
            let mut router = axum::routing::MethodRouter::new();
            $(
                let (path, methods) = {
                    utoipa_axum::paste! {
                        let path = utoipa_axum::routes!(@path [path()] of $handler);
                        let methods = utoipa_axum::routes!(@path [methods()] of $handler);
                        (path, methods)
                    }
                };
                let filter = $crate::api::routing::add(&mut paths, &path, methods);
                router = router.on(filter, $handler);
            )+
            (Vec::new(), paths, router)
        }};
    }
    pub(in super::super) use routes;
}

#[cfg(not(debug_assertions))]
pub(super) use bare::{Paths, add, routes};
