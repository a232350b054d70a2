-- Keys whose claims end with a load keep their answer, up to so many.
--
-- KEYS  meta  spent      ARGV  epoch  keys_max  then key  mark …
-- Answers 1, or 0 if the load is not ours any more.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading')
if meta[1] ~= ARGV[1] or not meta[2] then return 0 end
local room = tonumber(ARGV[2]) - redis.call('HLEN', KEYS[2])
for at = 3, #ARGV, 2 do
  if room <= 0 then break end
  room = room - redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
end
return 1
