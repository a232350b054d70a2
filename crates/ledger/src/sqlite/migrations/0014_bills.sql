-- What was put on record of a provider's money in some time, for comparing it with the provider's bill.
CREATE INDEX ix_payment_noted ON tb_payment (provider, kind, created_at);
