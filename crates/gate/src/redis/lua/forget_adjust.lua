-- Undo an adjustment that the ledger never confirmed.
--
-- KEYS  meta  stock  adjusts  changed      ARGV  adjust_no
-- Answers {seq, units}; an empty list if it is not known here.
local delta = redis.call('HGET', KEYS[3], ARGV[1])
if not delta then return {} end
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('INCRBY', KEYS[2], -tonumber(delta))
redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
return {redis.call('HINCRBY', KEYS[1], 'seq', 1), -tonumber(delta)}
