-- The loader lives, although it has nothing to load at this moment: it reads the ledger. Others see so,
-- and leave the item to it.
--
-- KEYS  meta      ARGV  epoch
-- Answers 1, or 0 if somebody else has taken the item over or it is gone.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading')
if meta[1] ~= ARGV[1] then return 0 end
if meta[2] then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'loading', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
end
return 1
