-- The third step: everything else, and open. The item is noted to be with this server process: one
-- that has it later, after a failover or a restart, may lack what was written last.
--
-- KEYS  meta  stock  adjusts   ARGV  epoch  shut  opens  closes  limit  left  then adjust_no …
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[6])
for at = 7, #ARGV do redis.call('HSET', KEYS[3], ARGV[at], 0) end
-- Somebody may have ended the sale meanwhile.
local shut = redis.call('HGET', KEYS[1], 'shut') == '3' and '3' or ARGV[2]
redis.call('HSET', KEYS[1], 'shut', shut, 'opens', ARGV[3], 'closes', ARGV[4], 'limit', ARGV[5])
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '0'
-- As a number that needs no more digits than Lua has.
redis.call('HSET', KEYS[1], 'server', tonumber(string.sub(server, 1, 12), 16))
redis.call('HDEL', KEYS[1], 'loading')
redis.call('HINCRBY', KEYS[1], 'seq', 1)
return 1
