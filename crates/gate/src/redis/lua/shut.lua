-- Stop or resume admitting. KEYS meta  changed  ARGV shut.  Answers 0 if the item is not here.
--
-- Ended is for good. An item in doubt stays frozen until it is loaded anew, whatever an operator
-- resumes meanwhile: what it admitted would be in nobody's books. The load that is under way ends as
-- the operator wished; it may have read the ledger before.
local meta = redis.call('HMGET', KEYS[1], 'shut', 'loading')
local now = meta[1]
if not now then return 0 end
if now == '3' or now == ARGV[1] then return 1 end
if now == '2' and ARGV[1] ~= '3' then
  if meta[2] then redis.call('HSET', KEYS[1], 'wish', ARGV[1]) end
  return 1
end
redis.call('HSET', KEYS[1], 'shut', ARGV[1])
redis.call('HINCRBY', KEYS[1], 'seq', 1)
redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
return 1
