-- The third step: marks, a chunk at a time, in their order; one that comes again is not counted again.
-- Whoever was marked before is taken from those put aside, so that nobody is there twice and memory does
-- not grow; if it was with another order, the key of that one stays spent.
--
-- KEYS  meta  users  before  spent      ARGV  epoch  chunk  units  keys_max  then user  mark …
-- Answers 1, 0 if the load is not ours any more, or 2 if a chunk before this one has not come.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'filled')
if meta[1] ~= ARGV[1] or not meta[2] or not meta[3] then return 0 end
local filled, chunk = tonumber(meta[3]), tonumber(ARGV[2])
if filled > chunk then return 1 end
if filled < chunk then return 2 end
-- The first write is one that a full memory refuses, so that either all of this happens or nothing.
redis.call('HSET', KEYS[2], unpack(ARGV, 5))
if redis.call('EXISTS', KEYS[3]) == 1 then
  local users, none = {}, string.rep('\0', 8)
  for at = 5, #ARGV, 2 do users[#users + 1] = ARGV[at] end
  local room
  for n, mark in ipairs(redis.call('HMGET', KEYS[3], unpack(users))) do
    if mark and string.sub(mark, 1, 8) ~= string.sub(ARGV[4 + 2 * n], 1, 8) then
      local key = string.sub(mark, 17, 24)
      room = room or tonumber(ARGV[4]) - redis.call('HLEN', KEYS[4])
      if key ~= none and room > 0 then room = room - redis.call('HSET', KEYS[4], key, mark) end
    end
  end
  redis.call('HDEL', KEYS[3], unpack(users))
end
redis.call('HINCRBY', KEYS[1], 'units', ARGV[3])
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'filled', chunk + 1,
  'loading', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return 1
