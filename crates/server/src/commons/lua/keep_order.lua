-- Keep a copy of an order unless a later one is here: an order's status only ever grows.
-- KEYS order  ARGV status json ttl_ms
local known = redis.call('HGET', KEYS[1], 's')
if known and tonumber(known) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 's', ARGV[1], 'o', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
