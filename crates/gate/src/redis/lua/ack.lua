-- These entries are in the ledger: take them off the log. Only what is really removed is taken off the count,
-- so twice is once; how many claims an entry has is written in it.
--
-- A failover can roll the stream back, and the new primary then gives an id to another entry. Whoever
-- acknowledges says therefore what they have read, by the beginning of a hash of the entry's head (epoch,
-- time, number of claims, first order number). What is something else is left alone, and stays pending
-- with whoever has it in hand.
--
-- What is removed is put at the end of `kept`, for those who look back, and the oldest there goes: what is
-- older than keep_ms, and what is more than kept_max bytes. With kept_max 0 nothing is added. A few go in one
-- call; without any entry that is all it does. When the server has no memory left it refuses the first
-- write, which is the one to `kept`: then all that is kept is given up, and selling goes on.
--
-- KEYS  orders  backlog  kept  kept_bytes
-- ARGV  group  keep_ms  kept_max  trimmed_max  then per entry: id  hash
-- Answers how many bytes are kept, and 1 if more should go.
local gone, gained, keep_ms, kept_max = 0, 0, tonumber(ARGV[2]), tonumber(ARGV[3])
-- What an entry takes beside its claims, roughly.
local ENTRY = 48

local function keep(item, claims)
  local added = redis.pcall('XADD', KEYS[3], '*', 'i', item, 'b', claims)
  if type(added) == 'table' and added.err then
    redis.call('DEL', KEYS[3], KEYS[4])
    kept_max, gained = 0, 0
  else gained = gained + #claims + ENTRY end
end

for at = 5, #ARGV, 2 do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[at], ARGV[at])[1]
  -- The fields are i, item, b, claims: after epoch and time comes their number.
  local claims = entry and entry[2][4]
  if not entry then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
  elseif claims and string.sub(redis.sha1hex(string.sub(claims, 1, 32)), 1, 16) == ARGV[at + 1] then
    if kept_max > 0 then keep(entry[2][2], claims) end
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
    redis.call('XDEL', KEYS[1], ARGV[at])
    gone = gone + struct.unpack('<I8', claims, 17)
  end
end
if gone > 0 then redis.call('DECRBY', KEYS[2], gone) end

local kept, lost, full = tonumber(redis.call('GET', KEYS[4]) or '0') + gained, 0, false
if kept > kept_max or #ARGV == 4 then
  local time = redis.call('TIME')
  local since = time[1] * 1000 + math.floor(time[2] / 1000) - keep_ms
  local oldest = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', ARGV[4])
  full = #oldest == tonumber(ARGV[4])
  for _, entry in ipairs(oldest) do
    if kept - lost <= kept_max and tonumber(string.match(entry[1], '^%d+')) >= since then
      full = false
      break
    end
    lost = lost + #(entry[2][4] or '') + ENTRY
    redis.call('XDEL', KEYS[3], entry[1])
  end
  if redis.call('XLEN', KEYS[3]) == 0 then
    -- An empty stream takes memory, too.
    redis.call('DEL', KEYS[3], KEYS[4])
    return {0, 0}
  end
end
if gained ~= lost then kept = redis.call('INCRBY', KEYS[4], gained - lost) else kept = kept - lost end
return {kept, full and 1 or 0}
