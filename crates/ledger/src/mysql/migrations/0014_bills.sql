-- What was put on record of a provider's money in some time, for comparing it with the provider's bill.
ALTER TABLE tb_payment ADD KEY ix_payment_noted (provider, kind, created_at);
