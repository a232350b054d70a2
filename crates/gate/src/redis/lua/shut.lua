-- Stop or resume admitting. KEYS meta  ARGV shut.  Answers 0 if the item is not here.
--
-- Ended is for good. An item in doubt stays frozen until it is loaded anew, whatever an operator
-- resumes meanwhile: what it admitted would be in nobody's books.
local now = redis.call('HGET', KEYS[1], 'shut')
if not now then return 0 end
if now == '3' or now == ARGV[1] or (now == '2' and ARGV[1] ~= '3') then return 1 end
redis.call('HSET', KEYS[1], 'shut', ARGV[1])
redis.call('HINCRBY', KEYS[1], 'seq', 1)
return 1
