-- What a buyer holds of several items, asked for together. While an item is being loaded, or is not
-- whole, a mark that is missing says nothing.
--
-- KEYS  per item: meta  users; then, where it can be asked in the same call, the directory of items
-- ARGV  user, then per item: id  shards, as the caller knows the directory
-- Answers per item a mark, an empty text if there is none, or `?` if nobody can tell now; and last 1 if
-- the directory is as the caller knows it, 0 if it is not, -1 if it was not asked.
local count = (#ARGV - 1) / 2

local function as_known(directory)
  if redis.call('HLEN', directory) ~= count then return 0 end
  if count == 0 then return 1 end
  local items = {}
  for at = 1, count do items[at] = ARGV[2 * at] end
  local shards = redis.call('HMGET', directory, unpack(items))
  for at = 1, count do
    if shards[at] ~= ARGV[2 * at + 1] then return 0 end
  end
  return 1
end

-- A key that is no hash is a server's trouble with one item, and hides no others.
local function mark_in(meta_key, users_key)
  local mark = redis.pcall('HGET', users_key, ARGV[1])
  if type(mark) == 'string' then return mark end
  if mark then return '?' end
  local meta = redis.pcall('HMGET', meta_key, 'epoch', 'shut', 'loading')
  if meta['err'] or not meta[1] or meta[2] == '2' or meta[3] then return '?' end
  return ''
end

local reply = {}
for at = 1, count do reply[at] = mark_in(KEYS[2 * at - 1], KEYS[2 * at]) end
reply[count + 1] = #KEYS > 2 * count and as_known(KEYS[#KEYS]) or -1
return reply
