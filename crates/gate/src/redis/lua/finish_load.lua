-- The last step: open. The item is noted to be with this server process: one that has it later, after
-- a failover or a restart, may lack what was written last.
--
-- KEYS  meta  changed      ARGV  epoch  shut
-- Answers 1 if it is open, now or since before; 0 if the load is not ours any more.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'stocked', 'shut', 'wish')
if meta[1] ~= ARGV[1] then return 0 end
if not meta[2] then return 1 end
if not meta[3] then return 0 end
-- Somebody may have ended, paused or resumed the sale since the ledger was read.
local shut = meta[4] == '3' and '3' or meta[5] or ARGV[2]
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '0'
-- As a number that needs no more digits than Lua has.
redis.call('HSET', KEYS[1], 'shut', shut, 'server', tonumber(string.sub(server, 1, 12), 16))
redis.call('HDEL', KEYS[1], 'loading', 'wiped', 'filled', 'stocked', 'wish')
redis.call('HINCRBY', KEYS[1], 'seq', 1)
redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
return 1
