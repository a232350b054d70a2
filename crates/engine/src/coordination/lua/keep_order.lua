-- Keep a copy of an order unless a later one is here: an order's status only ever grows. A copy that
-- was read long ago is refused, for the later one may have expired meanwhile.
-- KEYS order  ARGV status json ttl_ms read_ms age_ms_max
-- Answers 1 if it is kept, 0 if a later one was here, -1 if it is too old.
local time = redis.call('TIME')
local age = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[4])
if age > tonumber(ARGV[5]) then return -1 end
local known = redis.call('HGET', KEYS[1], 's')
if known and tonumber(known) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 's', ARGV[1], 'o', ARGV[2], 't', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
