//! Keys and certificates that are replaced while orders are open: no notice is lost, and nobody restarts.

use std::path::{Path, PathBuf};

use client::NewSale;
use faults::providers::Paying;
use serde_json::json;

use super::providers::opened;
use crate::fixtures::{Buyer, Companies, Deployment, Payee, Profile, Sale, becomes};

/// Which of the files a shop keeps are those of Alipay and of its own app.
struct AlipayFiles {
    app_key: PathBuf,
    app_certificate: PathBuf,
    alipay_key: PathBuf,
    alipay_certificate: PathBuf,
}

impl AlipayFiles {
    fn in_folder(folder: &Path) -> AlipayFiles {
        let file = |name: &str| folder.join(name);
        AlipayFiles {
            app_key: file("app.key"),
            app_certificate: file("app.crt"),
            alipay_key: file("alipay.pub"),
            alipay_certificate: file("alipay.crt"),
        }
    }

    /// What Alipay gives out today, in the place of what was there.
    fn take_alipays(&self, companies: &Companies) {
        let own = companies.alipay.own();
        std::fs::copy(&own.key.public, &self.alipay_key).unwrap();
        std::fs::copy(&own.certificate, &self.alipay_certificate).unwrap();
    }

    fn take_apps(&self, companies: &Companies) {
        let app = companies.alipay.app();
        std::fs::copy(&app.key.private, &self.app_key).unwrap();
        std::fs::copy(&app.certificate, &self.app_certificate).unwrap();
    }

    /// A shop that knows Alipay by certificates, or by its bare key.
    fn known_to(&self, deployment: Deployment, root: Option<&Path>) -> Deployment {
        let name = |key: &str| format!("SECKILL_PAYMENT_ALIPAY_{key}_FILE");
        let deployment = deployment
            .without(&name("PRIVATE_KEY"))
            .without(&name("PUBLIC_KEY"))
            .env(&name("PRIVATE_KEY"), self.app_key.display());
        match root {
            None => deployment.env(&name("PUBLIC_KEY"), self.alipay_key.display()),
            Some(root) => deployment
                .env(&name("APP_CERTIFICATE"), self.app_certificate.display())
                .env(&name("ALIPAY_CERTIFICATE"), self.alipay_certificate.display())
                .env(&name("ROOT_CERTIFICATE"), root.display()),
        }
    }
}

async fn pays(companies: &Companies, (buyer, no): &mut (Buyer, String)) {
    companies.pay(Payee::Alipay, no, Paying::Now).unwrap();
    buyer.order_becomes(no, "paid").await;
}

/// By bare keys, or by certificates that lead to a root.
async fn alipay_with_new_keys(profile: Profile, by_certificates: bool) {
    let companies = Companies::start(1).await;
    let deployment = Deployment::new(profile);
    let files = AlipayFiles::in_folder(deployment.dir.path());
    files.take_apps(&companies);
    files.take_alipays(&companies);
    let root = companies.alipay.root_file.clone();
    let deployment = companies.known_to(deployment);
    let deployment = files.known_to(deployment, by_certificates.then_some(&*root));
    let sale: Sale = deployment.open_sale(NewSale::of(10)).await;
    companies.find(&sale);

    // Opened under the old key, paid under a new one that nobody has told us of. Alipay says it again, and
    // once the new file is in the place of the old one it is heard.
    let mut ann = opened(&companies, &sale, "ann", Payee::Alipay).await;
    let mut bob = opened(&companies, &sale, "bob", Payee::Alipay).await;
    companies.alipay.rotate_own().unwrap();
    companies.pay(Payee::Alipay, &ann.1, Paying::Now).unwrap();
    becomes("the notice is not taken", async || {
        companies.alipay.counts().get("notices_not_taken").is_some_and(|times| *times > 1)
    })
    .await;
    assert_eq!(ann.0.order(&ann.1).await["status"], "unpaid");
    files.take_alipays(&companies);
    ann.0.order_becomes(&ann.1, "paid").await;
    pays(&companies, &mut bob).await;

    // The app's own key: both are good at Alipay for a while, then the old one is not any more.
    let mut cat = opened(&companies, &sale, "cat", Payee::Alipay).await;
    companies.alipay.rotate_app().unwrap();
    files.take_apps(&companies);
    companies.alipay.forget_old_apps();
    let mut dan = sale.buyer("dan").await;
    let no = dan.buy().await;
    dan.order_becomes(&no, "unpaid").await;
    let path = format!("/api/v1/orders/{no}/payments");
    becomes("the new key is used", async || {
        dan.api.post(&path, &json!({"provider": "alipay"})).await.unwrap().status == 200
    })
    .await;
    pays(&companies, &mut cat).await;
    pays(&companies, &mut (dan, no)).await;
    assert!(!companies.alipay.counts().contains_key("notices_given_up"));
}

async fn new_keys_of_alipay_and_its_app_lose_no_notice(profile: Profile) {
    alipay_with_new_keys(profile, false).await;
}

async fn new_certificates_of_alipay_and_its_app_lose_no_notice(profile: Profile) {
    alipay_with_new_keys(profile, true).await;
}

async fn new_keys_of_wechat_and_its_merchant_lose_no_notice(profile: Profile) {
    let companies = Companies::start(1).await;
    let deployment = Deployment::new(profile);
    // The merchant's files, which are replaced while the server runs.
    let (key, certificate) =
        (deployment.dir.path().join("m.key"), deployment.dir.path().join("m.pem"));
    let replace = |companies: &Companies| {
        let merchant = companies.wechat.merchant();
        std::fs::copy(&merchant.key.private, &key).unwrap();
        std::fs::copy(&merchant.certificate, &certificate).unwrap();
    };
    replace(&companies);
    let deployment = companies
        .known_to(deployment)
        .without("SECKILL_PAYMENT_WECHAT_PRIVATE_KEY_FILE")
        .without("SECKILL_PAYMENT_WECHAT_CERTIFICATE_FILE")
        .env("SECKILL_PAYMENT_WECHAT_PRIVATE_KEY_FILE", key.display())
        .env("SECKILL_PAYMENT_WECHAT_CERTIFICATE_FILE", certificate.display());
    let mut sale = deployment.open_sale(NewSale::of(10)).await;
    companies.find(&sale);

    // Opened under the old certificate, paid under a new one that nobody was told of.
    let (mut ann, first) = opened(&companies, &sale, "ann", Payee::WeChat).await;
    companies.wechat.rotate_platform().unwrap();
    companies.pay(Payee::WeChat, &first, Paying::Now).unwrap();
    ann.order_becomes(&first, "paid").await;

    // The merchant's own key: the new one is put in the place of the old, which is not believed any more.
    let (mut bob, second) = opened(&companies, &sale, "bob", Payee::WeChat).await;
    companies.wechat.rotate_merchant().unwrap();
    replace(&companies);
    let mut cat = sale.buyer("cat").await;
    let third = cat.buy().await;
    cat.order_becomes(&third, "unpaid").await;
    companies.wechat.forget_old_merchants();
    let path = format!("/api/v1/orders/{third}/payments");
    becomes("the new key is used", async || {
        cat.api.post(&path, &json!({"provider": "wechat"})).await.unwrap().status == 200
    })
    .await;
    for (buyer, no) in [(&mut bob, &second), (&mut cat, &third)] {
        companies.pay(Payee::WeChat, no, Paying::Now).unwrap();
        buyer.order_becomes(no, "paid").await;
    }

    // A public key in the place of certificates. Its notices are not believed before it is named, and are
    // sent again after that.
    let (_, fourth) = opened(&companies, &sale, "dan", Payee::WeChat).await;
    let (id, public) = companies.wechat.rotate_public_key().unwrap();
    companies.pay(Payee::WeChat, &fourth, Paying::Now).unwrap();
    becomes("the notice is not taken", async || {
        companies.wechat.counts().get("notices_not_taken").is_some_and(|times| *times > 1)
    })
    .await;
    sale.stop().await;
    let named = format!("{id}={}", public.public.display());
    sale.deployment.launches.iter_mut().for_each(|launch| {
        *launch = launch.clone().env("SECKILL_PAYMENT_WECHAT_PUBLIC_KEYS", &named);
    });
    sale.start().await;
    companies.find(&sale);
    sale.buyer("dan").await.order_becomes(&fourth, "paid").await;
    assert!(!companies.wechat.counts().contains_key("notices_given_up"));
}

crate::only_in_solo! {
    new_keys_of_alipay_and_its_app_lose_no_notice,
    new_certificates_of_alipay_and_its_app_lose_no_notice,
    new_keys_of_wechat_and_its_merchant_lose_no_notice,
}
