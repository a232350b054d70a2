-- Decide a batch of attempts on one item in one partition.
--
-- KEYS  meta  stock  users  spent  orders  backlog
-- ARGV  item  log_claims_max  then per attempt: user  quantity  order_no (8 bytes)  key (8 bytes, zero: none)
-- Answers {epoch, seq, now_ms, backlog, verdict…}, or an empty list if the item is not here.
-- A verdict is a letter and what belongs to it; crates/gate/src/redis/verdict.rs reads them.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'shut', 'opens', 'closes', 'limit', 'seq')
if not meta[1] then return {} end
local epoch, shut = tonumber(meta[1]), tonumber(meta[2])
local opens, closes = tonumber(meta[3]), tonumber(meta[4])
local limit, seq = tonumber(meta[5]), tonumber(meta[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left = tonumber(redis.call('GET', KEYS[2]) or '0')
local backlog = tonumber(redis.call('GET', KEYS[6]) or '0')
local log_max = tonumber(ARGV[2])
local none = string.rep('\0', 8)

local users = {}
for at = 3, #ARGV, 4 do users[#users + 1] = ARGV[at] end
local marks = redis.call('HMGET', KEYS[3], unpack(users))

local reply = {epoch, seq, now, backlog}
local mine = {}      -- winners of this very batch
local new_marks = {} -- for HSET
local winners = {}   -- for the log
local units = 0
for n, user in ipairs(users) do
  local at = 3 + (n - 1) * 4
  local quantity, order_no, key = tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  local mark = mine[user] or marks[n]
  local spent = key ~= none and redis.call('HGET', KEYS[4], key)
  local verdict
  -- What was answered before is true whether or not the window is open; a spent key comes before
  -- what its buyer holds by now.
  if spent then verdict = 'R' .. spent
  elseif mark then
    if key ~= none and string.sub(mark, 17, 24) == key then verdict = 'R' .. mark
    else verdict = 'B' .. mark end
  elseif shut == 3 then verdict = 'E'
  elseif shut == 1 then verdict = 'P'
  elseif shut == 2 then verdict = 'F'
  elseif now < opens then verdict = 'N' .. meta[3]
  elseif now >= closes then verdict = 'E'
  elseif quantity > limit then verdict = 'O' .. meta[5]
  elseif quantity > left then verdict = 'S' .. left
  elseif backlog + #winners >= log_max then verdict = 'L'
  else
    mark = order_no .. struct.pack('<I4I4', quantity, epoch) .. key
    mine[user] = mark
    new_marks[#new_marks + 1] = user
    new_marks[#new_marks + 1] = mark
    winners[#winners + 1] = mark .. struct.pack('<I2', #user) .. user
    left = left - quantity
    units = units + quantity
    verdict = 'A' .. mark
  end
  reply[4 + n] = verdict
end
if #winners == 0 then return reply end

-- The first write is one that a full memory refuses, so that either all of this happens or nothing.
redis.call('HSET', KEYS[3], unpack(new_marks))
redis.call('SET', KEYS[2], left)
redis.call('HINCRBY', KEYS[1], 'units', units)
reply[2] = redis.call('HINCRBY', KEYS[1], 'seq', 1)
redis.call('INCRBY', KEYS[6], #winners)
redis.call('XADD', KEYS[5], '*', 'i', ARGV[1], 'b',
  struct.pack('<I8I8I8', epoch, now, #winners) .. table.concat(winners))
return reply
