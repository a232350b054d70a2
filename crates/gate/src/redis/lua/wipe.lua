-- The second step: what the shard held is over. Spent keys stay spent, and those who were marked are put
-- aside until they are marked again. Once per load, however often it is sent.
--
-- KEYS  meta  stock  users  before  adjusts  moves  given  settled      ARGV  epoch  item
-- Answers 1, or 0 if the load is not ours any more, or 2 if a loader that died had marked some again:
-- they have to be put aside first (gather.lua).
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'wiped')
if meta[1] ~= ARGV[1] or not meta[2] then return 0 end
if meta[3] then return 1 end
if redis.call('EXISTS', KEYS[3]) == 1 then
  if redis.call('EXISTS', KEYS[4]) == 1 then return 2 end
  redis.call('RENAME', KEYS[3], KEYS[4])
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'wiped', 1, 'filled', 0, 'units', 0,
  'loading', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
redis.call('UNLINK', KEYS[2], KEYS[5])
-- Moves of an earlier epoch are over: their units are counted anew.
for at = 6, 8 do
  local all = redis.call('HGETALL', KEYS[at])
  for n = 1, #all, 2 do
    if string.match(all[n + 1], '^(%d+):') == ARGV[2] then redis.call('HDEL', KEYS[at], all[n]) end
  end
end
return 1
