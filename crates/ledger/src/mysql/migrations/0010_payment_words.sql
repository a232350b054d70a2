-- method: how the buyer came to the provider (page, phone, qr, app), of a payment that was opened. refund_reason,
-- refund_note and refund_asked_at, of money received: why it goes back, in whose words, and since when. NULL in
-- rows that the build before writes.
ALTER TABLE tb_payment ADD COLUMN method VARCHAR(16);
ALTER TABLE tb_payment ADD COLUMN refund_reason VARCHAR(16);
ALTER TABLE tb_payment ADD COLUMN refund_note VARCHAR(255);
ALTER TABLE tb_payment ADD COLUMN refund_asked_at BIGINT;
