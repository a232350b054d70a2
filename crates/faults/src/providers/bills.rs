//! Bills as the companies offer them: a table of a day, with quirks of its own in each.

use std::{
    io::{self, Write},
    process::{Command, Stdio},
    thread,
};

use super::{accounts::Charge, calendar};

/// Minor units as both companies write them.
pub(super) fn yuan(minor: i64) -> String {
    let sign = if minor < 0 { "-" } else { "" };
    let minor = minor.abs();
    format!("{sign}{}.{:02}", minor / 100, minor % 100)
}

/// What is on the bill of a day: charges and refunds that were done on it.
fn lines<'a>(charges: &'a [Charge], date: &str) -> Vec<(&'a Charge, Option<usize>)> {
    let mut lines = Vec::new();
    for charge in charges {
        if calendar::date(charge.at_ms) == date {
            lines.push((charge, None));
        }
        for (place, refund) in charge.refunds.iter().enumerate() {
            if calendar::date(refund.done_ms) == date && refund.done_ms <= calendar::now_ms() {
                lines.push((charge, Some(place)));
            }
        }
    }
    lines
}

/// WeChat Pay's: UTF-8, a back-tick before every value, the sums in the last two lines. Nothing if
/// nothing moved.
pub(super) fn wechat(charges: &[Charge], date: &str, appid: &str, mchid: &str) -> Option<String> {
    let lines = lines(charges, date);
    if lines.is_empty() {
        return None;
    }
    let mut text = String::from(
        "交易时间,公众账号ID,商户号,特约商户号,设备号,微信订单号,商户订单号,用户标识,交易类型,交易状态,\
         付款银行,货币种类,应结订单金额,代金券金额,微信退款单号,商户退款单号,退款金额,充值券退款金额,\
         退款类型,退款状态,商品名称,商户数据包,手续费,费率,订单金额,申请退款金额,费率备注\r\n",
    );
    let (mut paid, mut back) = (0, 0);
    for (charge, refund) in &lines {
        let amount = yuan(charge.amount);
        let refund = refund.map(|place| &charge.refunds[place]);
        let at_ms = refund.map_or(charge.at_ms, |refund| refund.done_ms);
        let (state, kept) = match refund {
            Some(_) => ("REFUND", "0.00"),
            None => ("SUCCESS", amount.as_str()),
        };
        let (id, number, sum, done) = match refund {
            Some(refund) => {
                (refund.id.as_str(), refund.number.as_str(), yuan(refund.amount), "SUCCESS")
            }
            None => ("0", "0", yuan(0), ""),
        };
        let whole = if refund.is_some() { yuan(0) } else { amount.clone() };
        let kind = if refund.is_some() { "ORIGINAL" } else { "" };
        let time = calendar::plain(at_ms);
        let values: [&str; 27] = [
            &time,
            appid,
            mchid,
            "0",
            "",
            &charge.txn,
            &charge.order_no,
            "oUpF8uMuAJO_M2pxb1Q9zNjWeS6o",
            "NATIVE",
            state,
            "OTHERS",
            "CNY",
            kept,
            "0.00",
            id,
            number,
            &sum,
            "0.00",
            kind,
            done,
            "item",
            "",
            "0.00000",
            "0.60%",
            &whole,
            &sum,
            "",
        ];
        let values: Vec<String> = values.iter().map(|value| format!("`{value}")).collect();
        text.push_str(&values.join(","));
        text.push_str("\r\n");
        match refund {
            Some(refund) => back += refund.amount,
            None => paid += charge.amount,
        }
    }
    text.push_str(
        "总交易单数,应结订单总金额,退款总金额,充值券退款总金额,手续费总金额,订单总金额,申请退款总金额\r\n",
    );
    let (paid, back) = (yuan(paid), yuan(back));
    text.push_str(&format!("`{},`{paid},`{back},`0.00,`0.00000,`{paid},`{back}\r\n", lines.len()));
    Some(text)
}

/// Alipay's: a zip with a table of lines and one of sums, in GBK, with a tab after what looks like a number,
/// refunds below zero. Nothing if nothing moved.
pub(super) fn alipay(charges: &[Charge], date: &str, seller: &str) -> Option<io::Result<Vec<u8>>> {
    let lines = lines(charges, date);
    if lines.is_empty() {
        return None;
    }
    let mut text = format!(
        "#支付宝业务明细查询\r\n#账号：[{seller}0156]\r\n#起始日期：[{date} 00:00:00]   终止日期：[{date} 24:00:00]\r\n\
         #-----------------------------------------业务明细列表----------------------------------------\r\n\
         支付宝交易号,商户订单号,业务类型,商品名称,创建时间,完成时间,门店编号,门店名称,操作员,终端号,\
         对方账户,订单金额（元）,商家实收（元）,支付宝红包（元）,集分宝（元）,支付宝优惠（元）,\
         商家优惠（元）,券核销金额（元）,券名称,商家红包消费金额（元）,卡消费金额（元）,\
         退款批次号/请求号,服务费（元）,分润（元）,备注\r\n"
    );
    for (charge, refund) in &lines {
        let refund = refund.map(|place| &charge.refunds[place]);
        let (kind, done_ms, sum, number) = match refund {
            Some(refund) => ("退款", refund.done_ms, -refund.amount, refund.number.as_str()),
            None => ("交易", charge.at_ms, charge.amount, ""),
        };
        text.push_str(&format!(
            "{}\t,{}\t,{kind}\t,item,{},{},\t,\t,\t,\t,*茶(tea***@example.com)\t,{sum},{sum},0.00,0.00,0.00,\
             0.00,0.00,,0.00\t,0.00,{number}\t,0.00,0.00,item\r\n",
            charge.txn,
            charge.order_no,
            calendar::plain(charge.at_ms),
            calendar::plain(done_ms),
            sum = yuan(sum),
        ));
    }
    text.push_str(
        "#-----------------------------------------业务明细列表结束------------------------------------\r\n",
    );
    let sums = "#支付宝业务汇总查询\r\n门店编号,门店名称,交易订单总笔数\r\n";
    let name = |what: &str| format!("{seller}0156_{}_{what}.csv", date.replace('-', ""));
    let files = [(name("业务明细"), text.as_str()), (name("业务明细(汇总)"), sums)];
    Some(zip(&files))
}

/// Each file deflated, names and texts in GBK.
fn zip(files: &[(String, &str)]) -> io::Result<Vec<u8>> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, text) in files {
        let (name, text) = (gbk(name)?, gbk(text)?);
        let gzip = gzip(&text)?;
        // What gzip writes is a head of ten bytes, what is deflated, the checksum and the length.
        let deflated = &gzip[10..gzip.len() - 8];
        let checksum = &gzip[gzip.len() - 8..gzip.len() - 4];
        let at = bytes.len() as u32;
        let mut common = Vec::new();
        // Version 2.0, no flags, deflated, no time.
        common.extend([20, 0, 0, 0, 8, 0, 0, 0, 0x21, 0x5b]);
        common.extend(checksum);
        common.extend((deflated.len() as u32).to_le_bytes());
        common.extend((text.len() as u32).to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(&name);
        bytes.extend(deflated);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(&name);
    }
    let (at, length) = (bytes.len() as u32, directory.len() as u32);
    let count = (files.len() as u16).to_le_bytes();
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend(count);
    bytes.extend(count);
    bytes.extend(length.to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend([0, 0]);
    Ok(bytes)
}

pub(super) fn gzip(text: &[u8]) -> io::Result<Vec<u8>> {
    through(Command::new("gzip").args(["-n", "-c"]), text)
}

fn gbk(text: &str) -> io::Result<Vec<u8>> {
    through(Command::new("iconv").args(["-f", "UTF-8", "-t", "GBK"]), text.as_bytes())
}

/// What a program makes of these bytes.
fn through(program: &mut Command, input: &[u8]) -> io::Result<Vec<u8>> {
    let mut running = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdin = running.stdin.take();
    // Beside reading: it may write before it has read all.
    let done = thread::scope(|scope| {
        scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(input)));
        running.wait_with_output()
    })?;
    if done.status.success() { Ok(done.stdout) } else { Err(io::Error::other("it failed")) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{providers::accounts::Refund, services::ServiceFolder};

    const NOON_MS: i64 = 1_772_337_600_000;

    fn charges() -> Vec<Charge> {
        let refund = Refund {
            number: "R1".into(),
            id: "50".into(),
            amount: 699_900,
            asked_ms: NOON_MS,
            done_ms: NOON_MS + 1_000,
            stuck: None,
        };
        let charge = |txn: &str, order_no: &str, refunds| Charge {
            txn: txn.into(),
            order_no: order_no.into(),
            amount: 699_900,
            at_ms: NOON_MS,
            refunds,
        };
        vec![charge("4200001", "SK1", vec![refund]), charge("4200002", "SK2", vec![])]
    }

    #[test]
    fn a_bill_has_a_line_for_what_came_and_one_for_what_went_back() {
        let bill = wechat(&charges(), "2026-03-01", "wx1", "1900").unwrap();
        let rows: Vec<&str> = bill.lines().collect();
        assert_eq!(rows.len(), 6, "{bill}");
        assert!(rows[1].starts_with("`2026-03-01 12:00:00,`wx1,`1900,`0,`,`4200001,`SK1,"));
        assert!(rows[2].contains(",`REFUND,") && rows[2].contains("`R1,`6999.00,"));
        assert_eq!(rows[0].split(',').count(), rows[1].split(',').count());
        assert_eq!(rows[0].split(',').count(), rows[2].split(',').count());
        assert!(rows[5].starts_with("`3,`13998.00,`6999.00"));
        assert!(wechat(&charges(), "2026-03-02", "wx1", "1900").is_none());
    }

    /// Unpacked by somebody else's program.
    #[test]
    fn a_zip_is_one_for_others_too() {
        let bill = alipay(&charges(), "2026-03-01", "2088").unwrap().unwrap();
        let folder = ServiceFolder::new("bill").unwrap();
        let path = folder.path().join("bill.zip");
        fs::write(&path, bill).unwrap();
        let script = "import sys,zipfile;z=zipfile.ZipFile(sys.argv[1]);assert z.testzip() is None;\
            n=[i.filename for i in z.infolist()];t=z.read(n[0]).decode('gbk');\
            sys.stdout.reconfigure(encoding='utf-8');print(len(n));print(t)";
        let said = Command::new("python3").args(["-c", script]).arg(&path).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let rows: Vec<&str> = said.lines().collect();
        assert_eq!((rows[0], rows[1]), ("2", "#支付宝业务明细查询"), "{said}");
        assert!(rows[6].starts_with("4200001\t,SK1\t,交易\t,item,2026-03-01 12:00:00"), "{said}");
        assert!(rows[7].contains(",-6999.00,-6999.00,") && rows[7].contains(",R1\t,"), "{said}");
        assert_eq!(rows[5].split(',').count(), rows[6].split(',').count());
    }

    #[test]
    fn sums_are_written_with_two_digits() {
        assert_eq!([1, -1, 100, 699_900].map(yuan), ["0.01", "-0.01", "1.00", "6999.00"]);
    }
}
