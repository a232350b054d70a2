-- Every process that was ever a worker is a consumer of the group. Forget those that hold nothing and
-- have not been heard of for long; in one step, for one that holds something must not be forgotten.
--
-- KEYS  orders      ARGV  group  idle_ms  own name
-- Answers how many were forgotten.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local gone = 0
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local about = {}
  for at = 1, #consumer, 2 do about[consumer[at]] = consumer[at + 1] end
  if about.name ~= ARGV[3] and about.pending == 0 and about.idle > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], about.name)
    gone = gone + 1
  end
end
return gone
