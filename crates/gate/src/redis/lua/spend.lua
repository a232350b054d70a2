-- Keys whose claims are over keep their answer, up to so many.
--
-- KEYS  spent      ARGV  keys_max  then key  mark …
local room = tonumber(ARGV[1]) - redis.call('HLEN', KEYS[1])
for at = 2, #ARGV, 2 do
  if room <= 0 then break end
  room = room - redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
end
return 1
