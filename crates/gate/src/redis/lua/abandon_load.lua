-- The loader gives up: others need not wait until it has been quiet for long.
--
-- KEYS  meta      ARGV  epoch
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading')
if meta[1] ~= ARGV[1] or not meta[2] then return 0 end
redis.call('HSET', KEYS[1], 'loading', 0)
return 1
